// Who does not answer, and signals that come meanwhile.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <array>
#include <atomic>
#include <csignal>

#include "transport/sockets/fd.h"
#include "transport/sockets/socket.h"

namespace tutti::testing {

/// A port of 127.0.0.1 whose queue is full: the kernel drops who comes, as a firewall or a host that is down does.
class FullListener {
 public:
  FullListener() : listener_(socket()) {
    socklen_t size = sizeof at_;
    at_.sin_family = AF_INET;
    at_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    (void)::bind(listener_.get(), reinterpret_cast<sockaddr*>(&at_), sizeof at_);
    (void)::listen(listener_.get(), 0);
    (void)::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&at_), &size);
    for (sockets::Fd& one : queued_) {
      one = socket();
      (void)::connect(one.get(), reinterpret_cast<sockaddr*>(&at_), sizeof at_);
    }
  }
  sockets::Endpoint endpoint() const { return {"127.0.0.1", ntohs(at_.sin_port)}; }
  /// For who comes from now on.
  void make_room() {
    for (sockets::Fd& one : queued_) one.reset();
    (void)::listen(listener_.get(), 16);
    while (accept()) {
    }
  }
  sockets::Fd accept() { return sockets::Fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK)); }

 private:
  static sockets::Fd socket() { return sockets::Fd(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)); }

  sockets::Fd listener_;
  std::array<sockets::Fd, 4> queued_;
  sockaddr_in at_{};
};

/// Signals for this process, every millisecond, whose handler does not let calls of the kernel go on.
class SignalStorm {
 public:
  SignalStorm() {
    signals_ = 0;
    struct sigaction action {};
    action.sa_handler = [](int) { ++signals_; };
    (void)::sigaction(SIGALRM, &action, &before_);
    const itimerval every{{0, 1000}, {0, 1000}};
    (void)::setitimer(ITIMER_REAL, &every, nullptr);
  }
  ~SignalStorm() {
    const itimerval never{};
    (void)::setitimer(ITIMER_REAL, &never, nullptr);
    (void)::sigaction(SIGALRM, &before_, nullptr);
  }
  SignalStorm(const SignalStorm&) = delete;
  SignalStorm& operator=(const SignalStorm&) = delete;
  static int signals() { return signals_; }

 private:
  static inline std::atomic<int> signals_{0};
  struct sigaction before_ {};
};

}  // namespace tutti::testing
