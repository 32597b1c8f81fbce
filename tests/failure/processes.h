// Ranks as forked processes that may be killed and stopped. What they find lies in memory that the test shares with
// them, so that it outlives them; what they print goes to a memory file. A test's own process should not use the
// library: forks would inherit its threads' locks, and the options that it has read from the environment.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <iostream>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "tutti/tutti.hpp"

namespace tutti::testing {

using namespace std::chrono_literals;

/// The contract's bound: how long a failure may take to reach all ranks.
inline constexpr double kBoundSeconds = 2.0;

/// A number from TUTTI_TEST_<name>, so that the slow runs of a test do more of the same.
inline int setting(const char* name, int otherwise) {
  const char* text = std::getenv((std::string("TUTTI_TEST_") + name).c_str());
  return text == nullptr ? otherwise : std::atoi(text);
}

/// A seed that is printed; TUTTI_TEST_SEED repeats a run.
inline std::uint32_t new_seed() {
  const auto seed = static_cast<std::uint32_t>(setting("SEED", static_cast<int>(now_ns() & 0x7FFFFFFF)));
  std::cout << "seed " << seed << " (TUTTI_TEST_SEED repeats it)" << std::endl;
  return seed;
}

/// Polls until `holds` or the limit; true when it held. For what another process or thread does.
template <class Holds>
bool eventually(std::chrono::milliseconds limit, Holds&& holds) {
  const std::int64_t until = now_ns() + std::chrono::nanoseconds(limit).count();
  for (;;) {
    if (holds()) return true;
    if (now_ns() > until) return false;
    const timespec pause{0, 200'000};
    nanosleep(&pause, nullptr);
  }
}

/// Results of one rank, for the test to read.
struct Slot {
  struct Failure {
    std::int64_t at_ns = 0;
    Code code = Code::ok;
    char text[1500] = {};
  };
  std::atomic<int> progress{0};  // whatever the body counts
  std::atomic<int> failures{0};
  Failure failure[4];
  char notes[400'000] = {};
};

struct Shared {
  std::atomic<bool> id_ready{false};
  std::atomic<int> go{0};  // the test's word to the ranks
  UniqueId id{};
  Slot slots[16];
};

/// A rank's side.
class Place {
 public:
  Place(Shared& shared, int rank, int size) : shared_(shared), rank_(rank), size_(size) {}
  int rank() const { return rank_; }
  int size() const { return size_; }

  Communicator join(const Options& options) const {
    if (rank_ == 0) {
      shared_.id = Communicator::make_unique_id();
      shared_.id_ready = true;
    }
    wait_for([this] { return shared_.id_ready.load(); });
    return Communicator::from_unique_id(shared_.id, rank_, size_, options);
  }
  void step() const { slot().progress.fetch_add(1); }
  void set_progress(int value) const { slot().progress = value; }
  int progress_of(int rank) const { return shared_.slots[rank].progress; }
  /// Until the test has called go(value).
  void wait_for_go(int value = 1) const {
    wait_for([&] { return shared_.go.load() >= value; });
  }
  void note(const std::string& text) const { std::strncpy(slot().notes, text.c_str(), sizeof(slot().notes) - 1); }
  /// Runs `call`; what it throws is kept. True when it threw.
  template <class Body>
  bool fails(Body&& call) const {
    try {
      call();
      return false;
    } catch (const Error& error) {
      Slot& s = slot();
      const int index = s.failures.load();
      if (index < 4) {
        s.failure[index].at_ns = now_ns();
        s.failure[index].code = error.code();
        std::strncpy(s.failure[index].text, error.what(), sizeof(s.failure[index].text) - 1);
      }
      s.failures.store(index + 1);
      return true;
    }
  }
  std::string first_failure() const { return slot().failure[0].text; }
  /// Ends the process as a failed one; the test shows the text.
  [[noreturn]] void give_up(const std::string& text) const {
    note("gave up: " + text);
    _exit(3);
  }

 private:
  template <class Holds>
  void wait_for(Holds&& holds) const {
    if (!eventually(60s, holds)) give_up("waited 60 s for the test or rank 0");
  }
  Slot& slot() const { return shared_.slots[rank_]; }
  Shared& shared_;
  int rank_;
  int size_;
};

/// The test's side. Kills and reaps what is left when destroyed.
class Processes {
 public:
  using Body = std::function<void(const Place&)>;
  using Setting = std::pair<std::string, std::string>;  // of the environment

  Processes(int size, const Body& body, const std::vector<Setting>& environment = {}) {
    void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared_ = new (memory) Shared;
    std::cout.flush();
    for (int rank = 0; rank < size; ++rank) {
      const int output = memfd_create("output", 0);
      const pid_t pid = fork();
      if (pid == 0) {
        for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
        dup2(output, STDERR_FILENO);
        dup2(output, STDOUT_FILENO);
        const Place place(*shared_, rank, size);
        try {
          body(place);
        } catch (const std::exception& error) {
          place.give_up(error.what());
        }
        _exit(0);
      }
      ranks_.push_back({pid, output, false, 0});
    }
  }
  ~Processes() {
    for (Rank& rank : ranks_) {
      if (!rank.ended) {
        kill(rank.pid, SIGKILL);
        waitpid(rank.pid, nullptr, 0);
      }
      close(rank.output);
    }
    munmap(shared_, sizeof(Shared));
  }
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  pid_t pid(int rank) const { return ranks_[static_cast<std::size_t>(rank)].pid; }
  const Slot& slot(int rank) const { return shared_->slots[rank]; }
  std::string error(int rank, int which = 0) const { return slot(rank).failure[which].text; }
  void go(int value = 1) { shared_->go = value; }
  /// Returns when it was sent, in now_ns().
  std::int64_t signal(int rank, int number) const {
    kill(pid(rank), number);
    return now_ns();
  }
  /// SIGSTOP, and until it has taken effect.
  void stop(int rank) const {
    kill(pid(rank), SIGSTOP);
    waitpid(pid(rank), nullptr, WUNTRACED);
  }
  ::testing::AssertionResult wait_progress(int rank, int value, std::chrono::milliseconds limit = 60s) {
    eventually(limit, [&] { return slot(rank).progress >= value || reap(rank); });
    if (slot(rank).progress >= value) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << state(rank);
  }

  /// Until all ranks, but those in `except`, have ended by themselves; false (and why) when they have not, or badly.
  ::testing::AssertionResult finish(std::chrono::milliseconds limit = 60s, const std::vector<int>& except = {}) {
    const auto excepted = [&](int rank) { return std::count(except.begin(), except.end(), rank) > 0; };
    const int size = static_cast<int>(ranks_.size());
    eventually(limit, [&] {
      bool all = true;
      for (int r = 0; r < size; ++r) all &= excepted(r) || reap(r);
      return all;
    });
    auto result = ::testing::AssertionSuccess();
    for (int r = 0; r < size; ++r) {
      const Rank& rank = ranks_[static_cast<std::size_t>(r)];
      if (excepted(r) || (rank.ended && rank.status == 0)) continue;
      if (result) result = ::testing::AssertionFailure();
      result << state(r);
    }
    return result;
  }
  std::string state(int r) const {
    const Rank& rank = ranks_[static_cast<std::size_t>(r)];
    return "\nrank " + std::to_string(r) +
           (rank.ended ? " ended with status " + std::to_string(rank.status) : std::string(" hangs")) +
           " at progress " + std::to_string(slot(r).progress) + "; " + slot(r).notes + "\n" + output(r);
  }
  /// Returns what the rank has written to standard output and error.
  std::string output(int rank) const {
    std::string text(1 << 16, '\0');
    const ssize_t got = pread(ranks_[static_cast<std::size_t>(rank)].output, text.data(), text.size(), 0);
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    return text;
  }
  /// "rank 1 (host alpha, pid 4711)", as errors name it.
  std::string name(int rank) const {
    char host[256] = {};
    gethostname(host, sizeof(host) - 1);
    return "rank " + std::to_string(rank) + " (host " + host + ", pid " + std::to_string(pid(rank)) + ")";
  }
  /// "rank 1 of group 'tp' (job rank 3, host alpha, pid 4711)". `group`: "group 'tp'".
  std::string name_in(const std::string& group, int rank, int job_rank) const {
    return "rank " + std::to_string(rank) + " of " + group + " (job " +
           name(job_rank).replace(name(job_rank).find(" ("), 2, ", ");
  }

 private:
  struct Rank {
    pid_t pid;
    int output;
    bool ended;
    int status;  // as waitpid gives it
  };
  bool reap(int r) {
    Rank& rank = ranks_[static_cast<std::size_t>(r)];
    if (!rank.ended) rank.ended = waitpid(rank.pid, &rank.status, WNOHANG) == rank.pid;
    return rank.ended;
  }

  Shared* shared_;
  std::vector<Rank> ranks_;
};

inline Options with_timeout(std::chrono::milliseconds timeout) {
  Options options;
  options.timeout = timeout;
  return options;
}

}  // namespace tutti::testing
