// Ranks that are forked processes. The calling process must not have used Tutti before: options are
// read once per process, and the children are to read their own environment.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <exception>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/cable.h"
#include "tutti/tutti.hpp"

namespace tutti::testing {

using Environment = std::map<std::string, std::string>;

/// How a child ended: what its body returned, or the error that it threw (or the signal that ended it).
struct Outcome {
  std::string said;
  std::string error;
};

namespace internal {

struct ChildProcess {
  pid_t pid = -1;
  int pipe = -1;
};

inline void write_all(int pipe, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t wrote = TEMP_FAILURE_RETRY(::write(pipe, text.data() + done, text.size() - done));
    if (wrote <= 0) ::_exit(3);
    done += static_cast<std::size_t>(wrote);
  }
}

inline ChildProcess start_child(const Environment& environment, const std::function<std::string()>& body) {
  int ends[2];
  if (::pipe(ends) != 0) std::abort();
  ChildProcess child{::fork(), ends[0]};
  if (child.pid != 0) {
    ::close(ends[1]);
    return child;
  }
  ::close(ends[0]);
  for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
  std::string text;
  try {
    text = "+" + body();
  } catch (const std::exception& error) {
    text = "-" + std::string(error.what());
  }
  write_all(ends[1], text);
  ::_exit(0);
}

inline Outcome end_of(const ChildProcess& child) {
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = TEMP_FAILURE_RETRY(::read(child.pipe, buffer, sizeof buffer))) > 0;) {
    text.append(buffer, static_cast<std::size_t>(got));
  }
  ::close(child.pipe);
  int status = 0;
  TEMP_FAILURE_RETRY(::waitpid(child.pid, &status, 0));
  if (WIFSIGNALED(status)) return {"", "ended by signal " + std::to_string(WTERMSIG(status))};
  if (text.empty()) return {"", "ended with status " + std::to_string(WEXITSTATUS(status)) + " and said nothing"};
  return text[0] == '+' ? Outcome{text.substr(1), ""} : Outcome{"", text.substr(1)};
}

}  // namespace internal

/// Runs `body` in a child process.
inline Outcome in_child(const std::function<std::string()>& body, const Environment& environment = {}) {
  return internal::end_of(internal::start_child(environment, body));
}

/// Runs body(rank) on `ranks` processes, each with the environment by which it finds the others; by rank. `order`: in
/// which order the ranks are started, where that matters. `hosts`: TUTTI_HOST_ID of each rank; empty: none has one.
/// With TUTTI_TEST_CABLE="rxe2,rxe3", the ends of a cable, host a has both as its rails and all others have them the
/// other way round, so that all goes over the cable.
inline std::vector<Outcome> run_ranks(int ranks, const std::function<std::string(int)>& body,
                                      Environment environment = {}, std::vector<int> order = {},
                                      const std::vector<std::string>& hosts = {}) {
  static int jobs = 0;
  for (int r = static_cast<int>(order.size()); r < ranks; ++r) order.push_back(r);
  environment["TUTTI_JOB"] = std::to_string(::getpid()) + "." + std::to_string(++jobs);
  environment["TUTTI_SIZE"] = std::to_string(ranks);
  environment.emplace("TUTTI_TIMEOUT", "120s");
  std::vector<internal::ChildProcess> children(static_cast<std::size_t>(ranks));
  for (const int rank : order) {
    environment["TUTTI_RANK"] = std::to_string(rank);
    if (!hosts.empty()) {
      const std::string& host = environment["TUTTI_HOST_ID"] = hosts[static_cast<std::size_t>(rank)];
      const std::string rails = rails_of_cable(host == "a");
      if (!rails.empty()) environment["TUTTI_VERBS_DEVICES"] = rails;
    }
    children[static_cast<std::size_t>(rank)] = internal::start_child(environment, [&] { return body(rank); });
  }
  std::vector<Outcome> outcomes;
  for (const internal::ChildProcess& child : children) outcomes.push_back(internal::end_of(child));
  return outcomes;
}

/// Runs `body` with the communicator that a rank's environment gives.
inline std::vector<Outcome> run_processes(int ranks, const std::function<std::string(Communicator&)>& body,
                                          Environment environment = {}, std::vector<int> order = {},
                                          const std::vector<std::string>& hosts = {}) {
  const auto with_communicator = [&body](int) {
    Communicator comm = Communicator::from_environment();
    return body(comm);
  };
  return run_ranks(ranks, with_communicator, std::move(environment), std::move(order), hosts);
}

inline void expect_no_errors(const std::vector<Outcome>& outcomes) {
  for (std::size_t r = 0; r < outcomes.size(); ++r) EXPECT_EQ(outcomes[r].error, "") << "rank " << r;
}

/// Expects that all ranks but one ended well, with these words.
inline void expect_all_say(const std::vector<Outcome>& outcomes, const std::string& words, int but = -1) {
  for (int r = 0; r < static_cast<int>(outcomes.size()); ++r) {
    const Outcome& outcome = outcomes[static_cast<std::size_t>(r)];
    if (r == but) continue;
    EXPECT_EQ(outcome.error, "") << "rank " << r;
    EXPECT_NE(outcome.said.find(words), std::string::npos) << "rank " << r << ": " << outcome.said;
  }
}

/// Why ranks on two hosts do not find each other here; empty: they do.
inline const std::string& no_network() {
  static const std::string missing = [] {
    const auto outcomes = run_processes(2, [](Communicator&) { return std::string(); }, {}, {}, {"a", "b"});
    const std::string& error = outcomes[0].error;
    return error.find("no network") == std::string::npos ? "" : error;
  }();
  return missing;
}
/// In a test or its SetUp() itself: of a function that these call it ends that function alone.
#define NEEDS_NETWORK() \
  if (!no_network().empty()) GTEST_SKIP() << "tutti-test: not run: " << no_network()

}  // namespace tutti::testing
