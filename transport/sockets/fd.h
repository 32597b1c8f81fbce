// A file descriptor with an owner.
// Threads: one at a time for each object.
// Limits: ParentOnlyFd guards descriptors below 65536.
#pragma once

#include <unistd.h>

#include <utility>

namespace tutti::sockets {

/// Closes what it owns. Movable. Not thread-safe.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Fd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

/// A descriptor that children forked without exec do not keep. Else a data loader's worker would hold its dead parent's
/// connection open, and no peer would hear of the death.
class ParentOnlyFd {
 public:
  ParentOnlyFd() = default;
  explicit ParentOnlyFd(Fd fd) : fd_(std::move(fd)) { guard(true); }
  ParentOnlyFd(ParentOnlyFd&&) noexcept = default;
  ParentOnlyFd& operator=(ParentOnlyFd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::move(other.fd_);
    }
    return *this;
  }
  ~ParentOnlyFd() { reset(); }

  int get() const { return fd_.get(); }
  explicit operator bool() const { return static_cast<bool>(fd_); }
  void reset() {
    guard(false);
    fd_.reset();
  }
  Fd release() {
    guard(false);
    return std::move(fd_);
  }

 private:
  void guard(bool on);
  Fd fd_;
};

}  // namespace tutti::sockets
