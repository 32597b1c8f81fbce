// Handing file descriptors from one process to another on the same host, through a Unix socket with a random abstract
// name (nothing lies in the file system). The sender must run as the same user and know the token.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "transport/sockets/fd.h"
#include "transport/sockets/socket.h"

namespace tutti::sockets {

/// A secret by which the job's processes know each other; made by one, given to the rest by all_gather().
using Token = std::array<unsigned char, 16>;
Token random_token();

/// The receiving end. Not thread-safe.
class FdSocket {
 public:
  static constexpr std::size_t kMaxFds = 64;
  struct Received {
    int sender = -1;  // as the sender calls itself: its rank
    std::vector<Fd> fds;
  };

  static Result<FdSocket> listen();
  const std::string& name() const { return listener_->endpoint().address; }

  /// The next message that carries `token`; senders may have sent before. Anything else that connects is dropped and
  /// delays nothing. Errors: timeout, system.
  Result<Received> accept_fds(std::chrono::steady_clock::time_point deadline, const Token& token);
  /// Takes what has come, for accept_fds() later: so the queue of those who connect does not stay full. Does not wait.
  Status take_in(const Token& token);

 private:
  explicit FdSocket(std::unique_ptr<Listener> listener) : listener_(std::move(listener)) {}
  Status read_all(const Token& token);

  std::unique_ptr<Listener> listener_;
  std::vector<Fd> connections_;  // that have not sent yet
  std::deque<Received> taken_;   // not asked for yet
};

/// Sends copies of `fds` (at most FdSocket::kMaxFds) to the process that listens under `name`; does not wait for its
/// accept. While the queue there is full, `meanwhile` is called again and again. Errors: system (no process listens
/// there), whatever `meanwhile` returns, invalid_argument (another user listens there; too many).
Status send_fds(const std::string& name, const Token& token, int sender, const std::vector<int>& fds,
                const std::function<Status()>& meanwhile = {});

}  // namespace tutti::sockets
