// One framed, non-blocking stream between a rank and the bootstrap server.
// Errors: send() and receive() close the connection, and why_closed() says why; next() gives invalid_argument.
// Threads: one at a time; no function blocks.
// Limits: kMaxUnsent bytes that the other side has not read.
#pragma once

#include <poll.h>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "transport/bootstrap/message.h"
#include "transport/sockets/fd.h"

namespace tutti::bootstrap {

class Connection {
 public:
  /// With more unsent than this the connection is closed: the other side does not read.
  static constexpr std::size_t kMaxUnsent = 64 << 20;

  Connection() = default;
  explicit Connection(sockets::Fd fd) : fd_(std::move(fd)) {}

  int fd() const { return fd_.get(); }
  bool open() const { return static_cast<bool>(fd_); }
  /// Returns what poll() has to watch.
  pollfd poll_item() const { return {fd(), static_cast<short>(POLLIN | (unsent() ? POLLOUT : 0)), 0}; }
  /// Returns why it is closed; empty for an end of stream.
  const std::string& why_closed() const { return why_closed_; }
  /// Returns true if the system refuses the call that failed (is_refused_here): the other side is not to blame.
  bool refused_here() const { return refused_here_; }

  /// Sends what the socket takes and keeps the rest; closes when more than kMaxUnsent is kept.
  void send(std::string_view frame);
  void flush();
  bool unsent() const { return sent_ < out_.size(); }
  std::size_t unsent_bytes() const { return out_.size() - sent_; }

  /// Reads what is there (at most about 1 MiB, so that one peer cannot keep the others waiting). Frames already read
  /// remain readable after the connection has closed.
  void receive();
  Result<std::optional<Frame>> next(std::size_t max_payload) { return reader_.next(max_payload); }

  /// Ends the stream behind what was sent.
  void finish_sending();
  void close(std::string why = {});

 private:
  void close_by(const char* call, int error_number);

  sockets::ParentOnlyFd fd_;
  FrameReader reader_;
  std::string out_;
  std::size_t sent_ = 0;
  std::string why_closed_;
  bool refused_here_ = false;
};

}  // namespace tutti::bootstrap
