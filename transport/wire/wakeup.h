// How a wire sleeps while other threads of the process may move it.
// How: a thread that makes progress wakes the sleepers through an eventfd. A thread that has missed another one's
//   progress must not go to sleep.
// Errors: system from open(), when no eventfd can be had.
// Threads: any; moved(), missed() and prepare_to_sleep() with the wire's mutex held, sleep() without it.
#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <string>

#include "base/status.h"

namespace tutti::transport {

class Wakeup {
 public:
  Wakeup() = default;
  ~Wakeup() {
    if (fd_ >= 0) ::close(fd_);
  }
  Wakeup(const Wakeup&) = delete;
  Wakeup& operator=(const Wakeup&) = delete;

  Status open(const char* wire) {
    fd_ = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return fd_ >= 0 ? Status() : system_error(std::string(wire) + ": eventfd", errno);
  }

  // With the wire's mutex held:

  /// Records that this thread has called the wire's progress; `any`: something moved.
  void moved(bool any) {
    if (any) {
      moves_.fetch_add(1);
      if (sleepers_.load() > 0) (void)::eventfd_write(fd_, 1);
    }
    seen_ = {this, moves_.load()};
  }
  /// Returns true if another thread has moved something since this one called progress.
  bool missed() const { return seen_.wakeup == this && seen_.moves != moves_.load(); }
  /// Announces a sleep(), which follows once the mutex is released.
  void prepare_to_sleep() { sleepers_.fetch_add(1); }
  bool has_sleepers() const { return sleepers_.load() > 0; }

  // Without it:

  /// Sleeps until `event` is readable, or another thread makes progress, or `most` has passed.
  void sleep(int event, std::chrono::nanoseconds most) {
    pollfd waited[] = {{event, POLLIN, 0}, {fd_, POLLIN, 0}};
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(most);
    const timespec time{static_cast<time_t>(seconds.count()), static_cast<long>((most - seconds).count())};
    (void)::ppoll(waited, std::size(waited), &time, nullptr);
    sleepers_.fetch_sub(1);
    std::uint64_t count = 0;
    if ((waited[1].revents & POLLIN) != 0) (void)::eventfd_read(fd_, &count);
  }

 private:
  /// The state that a thread saw of the last wire that it moved.
  struct Seen {
    const Wakeup* wakeup;
    std::uint64_t moves;
  };
  static inline thread_local Seen seen_{};

  int fd_ = -1;
  std::atomic<int> sleepers_{0};
  std::atomic<std::uint64_t> moves_{0};
};

}  // namespace tutti::transport
