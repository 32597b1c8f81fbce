// Ranks at a bootstrap server, as threads and as processes.
#pragma once

#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/usage.h"
#include "tests/support/wait_readable.h"
#include "transport/bootstrap/bootstrap.h"

namespace tutti::bootstrap {

using namespace std::chrono_literals;

using tutti::testing::open_descriptors;

inline Secret test_secret() { return Secret::from_text("the tests' own"); }

inline Config config_of(int rank, int size, const sockets::Endpoint& server, std::chrono::milliseconds deadline = 30s) {
  Config config;
  config.rank = rank;
  config.size = size;
  config.server = server;
  config.secret = test_secret();
  config.deadline = deadline;
  return config;
}

/// Returns an abstract name without a listener.
inline sockets::Endpoint unused_local_endpoint() { return sockets::Listener::open_local().value()->endpoint(); }

/// Runs body(rank) on a thread for each of `ranks`, and joins them.
inline void on_threads(const std::vector<int>& ranks, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (const int rank : ranks) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

inline std::vector<int> all_ranks(int size) {
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
  return ranks;
}

/// All ranks of a job, connected, in this process.
inline std::vector<std::unique_ptr<Bootstrap>> meet(int size, std::chrono::milliseconds deadline = 30s) {
  std::unique_ptr<sockets::Listener> listener = sockets::Listener::open_local().take();
  const sockets::Endpoint server = listener->endpoint();
  std::vector<std::unique_ptr<Bootstrap>> ranks(static_cast<std::size_t>(size));
  on_threads(all_ranks(size), [&](int rank) {
    Config config = config_of(rank, size, server, deadline);
    if (rank == 0) config.listener = std::move(listener);
    auto met = Bootstrap::connect(std::move(config));
    ASSERT_TRUE(met.ok()) << met.status().message();
    ranks[static_cast<std::size_t>(rank)] = met.take();
  });
  return ranks;
}

/// A child process that writes lines to its parent. Killed and reaped on destruction.
class Child {
 public:
  using Say = std::function<void(const std::string& line)>;

  explicit Child(const std::function<void(const Say&)>& body) {
    int ends[2];
    if (::pipe(ends) != 0) std::abort();
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ends[0]);
      body([&](const std::string& line) {
        const std::string text = line + "\n";
        if (TEMP_FAILURE_RETRY(::write(ends[1], text.data(), text.size())) < 0) ::_exit(1);
      });
      ::_exit(0);
    }
    ::close(ends[1]);
    lines_ = sockets::Fd(ends[0]);
  }
  Child(Child&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), lines_(std::move(other.lines_)), text_(std::move(other.text_)) {}
  ~Child() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    TEMP_FAILURE_RETRY(::waitpid(pid_, nullptr, 0));
  }

  pid_t pid() const { return pid_; }
  void signal(int number) const { ::kill(pid_, number); }

  /// Its next line; "(nothing)" when none comes within `limit`, "(end)" when it has ended.
  std::string line(std::chrono::milliseconds limit = 30s) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    for (;;) {
      if (const std::size_t end = text_.find('\n'); end != std::string::npos) {
        const std::string line = text_.substr(0, end);
        text_.erase(0, end + 1);
        return line;
      }
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      if (left.count() <= 0 || !testing::wait_readable(lines_.get(), left)) return "(nothing)";
      char buffer[4096];
      const ssize_t got = TEMP_FAILURE_RETRY(::read(lines_.get(), buffer, sizeof buffer));
      if (got <= 0) return "(end)";
      text_.append(buffer, static_cast<std::size_t>(got));
    }
  }

 private:
  pid_t pid_ = -1;
  sockets::Fd lines_;
  std::string text_;
};

/// A rank as a process: says "here" once connected, each failure as "<code> <rank>: <message>", and stays until killed.
inline Child rank_process(int rank, int size, const sockets::Endpoint& server) {
  return Child([=](const Child::Say& say) {
    auto met = Bootstrap::connect(config_of(rank, size, server));
    if (!met.ok()) return say(met.status().message());
    met.value()->watch([&](const Failure& failure) {
      say(std::string(name_of(failure.code)) + " " + std::to_string(failure.rank) + ": " + failure.message);
    });
    say("here");
    for (;;) ::pause();
  });
}

}  // namespace tutti::bootstrap
