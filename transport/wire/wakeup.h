// How a wire sleeps while other threads of the process may move it: a thread that moves something rings for those that
// doze, and who has not seen what another thread moved does not lie down at all.
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

class Bell {
 public:
  Bell() = default;
  ~Bell() {
    if (fd_ >= 0) ::close(fd_);
  }
  Bell(const Bell&) = delete;
  Bell& operator=(const Bell&) = delete;

  Status open(const char* wire) {
    fd_ = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return fd_ >= 0 ? Status() : system_error(std::string(wire) + ": eventfd", errno);
  }

  // With the wire's mutex held:

  /// This thread has moved the wire; `any`: and something has come of it.
  void moved(bool any) {
    if (any) {
      moves_.fetch_add(1);
      if (dozing_.load() > 0) (void)::eventfd_write(fd_, 1);
    }
    seen_ = {this, moves_.load()};
  }
  /// Another thread has moved something since this one did.
  bool missed() const { return seen_.bell == this && seen_.moves != moves_.load(); }
  /// Before the mutex is let go, and then sleep().
  void lie_down() { dozing_.fetch_add(1); }
  bool anybody_dozes() const { return dozing_.load() > 0; }

  // Without it:

  /// Until `event` is readable, or somebody rings, or `most` has passed.
  void sleep(int event, std::chrono::nanoseconds most) {
    pollfd waited[] = {{event, POLLIN, 0}, {fd_, POLLIN, 0}};
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(most);
    const timespec time{static_cast<time_t>(seconds.count()), static_cast<long>((most - seconds).count())};
    (void)::ppoll(waited, std::size(waited), &time, nullptr);
    dozing_.fetch_sub(1);
    std::uint64_t rings = 0;
    if ((waited[1].revents & POLLIN) != 0) (void)::eventfd_read(fd_, &rings);
  }

 private:
  /// What a thread saw of the last wire that it moved.
  struct Seen {
    const Bell* bell;
    std::uint64_t moves;
  };
  static inline thread_local Seen seen_{};

  int fd_ = -1;
  std::atomic<int> dozing_{0};
  std::atomic<std::uint64_t> moves_{0};
};

}  // namespace tutti::transport
