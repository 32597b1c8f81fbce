#include "transport/sockets/fd_socket.h"

#include <fmt/format.h>
#include <poll.h>
#include <sodium.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

#include "base/log.h"
#include "transport/sockets/nonce.h"

namespace tutti::sockets {
namespace {

constexpr int kConnectMs = 10'000;
/// Connections that have said nothing yet; the oldest is dropped first.
constexpr std::size_t kMaxSilent = 128;

/// The bytes beside the descriptors. Both ends are the same program on the same host.
struct FdMessage {
  Token token{};
  std::int32_t sender = -1;
};

union Control {
  cmsghdr header;  // for its alignment
  char bytes[CMSG_SPACE(sizeof(int) * FdSocket::kMaxFds)];
};

/// Nothing: not there yet. A sender of -1: not a message with this token. Errors: system; this process has no room for
/// the descriptors.
Result<std::optional<FdSocket::Received>> try_receive(int fd, const Token& token) {
  FdMessage sent;
  Control control{};
  iovec data{&sent, sizeof sent};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  const ssize_t got = ::recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return std::optional<FdSocket::Received>();
  if (got < 0 && is_refused_here(errno)) return system_error("cannot receive a peer's file descriptors", errno);
  FdSocket::Received received;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); got >= 0 && part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int item = -1;
      std::memcpy(&item, CMSG_DATA(part) + i * sizeof(int), sizeof item);
      received.fds.emplace_back(item);
    }
  }
  // The message is smaller than any socket's buffer, so a sender of ours never sends it in parts.
  const bool whole = got == static_cast<ssize_t>(sizeof sent);
  const bool ours = whole && sodium_memcmp(sent.token.data(), token.data(), token.size()) == 0;
  if (ours && (message.msg_flags & MSG_CTRUNC) != 0) {
    return system_error("no room for a peer's file descriptors", EMFILE);
  }
  if (ours) received.sender = sent.sender;
  return std::optional<FdSocket::Received>(std::move(received));
}

}  // namespace

Token random_token() {
  const Nonce nonce = random_nonce();
  Token token;
  std::copy_n(nonce.begin(), token.size(), token.begin());
  return token;
}

Result<FdSocket> FdSocket::listen() {
  TUTTI_ASSIGN(std::unique_ptr<Listener> listener, Listener::open_local());
  return FdSocket(std::move(listener));
}

/// Those that have sent are done with.
Status FdSocket::read_all(const Token& token) {
  for (auto at = connections_.begin(); at != connections_.end();) {
    TUTTI_ASSIGN(std::optional<Received> received, try_receive(at->get(), token));
    if (!received) {
      ++at;
      continue;
    }
    if (received->sender < 0) {
      log::error("refused {}: it does not know the token of this job", describe_peer(at->get()));
    } else {
      taken_.push_back(std::move(*received));
    }
    at = connections_.erase(at);
  }
  if (connections_.size() > kMaxSilent) connections_.erase(connections_.begin());
  return {};
}

Status FdSocket::take_in(const Token& token) {
  // Each connection is asked before the next one is accepted: most have sent by then, and of those that have not only
  // the last few stay open.
  for (;;) {
    TUTTI_TRY(read_all(token));
    int error = 0;
    Fd fd = listener_->accept(error);
    if (!fd && (error == EINTR || error == ECONNABORTED)) continue;
    if (!fd && error == EAGAIN) return {};
    if (!fd) return system_error("cannot accept file descriptors", error);
    const Status same_user = check_same_user(fd.get());
    if (same_user.code() == Code::system) return same_user;
    if (same_user.ok()) {
      connections_.push_back(std::move(fd));
    } else {
      log::error("refused {}: {}", describe_peer(fd.get()), same_user.message());
    }
  }
}

Result<FdSocket::Received> FdSocket::accept_fds(std::chrono::steady_clock::time_point deadline, const Token& token) {
  for (;;) {
    if (taken_.empty()) TUTTI_TRY(take_in(token));
    if (!taken_.empty()) {
      Received first = std::move(taken_.front());
      taken_.pop_front();
      return first;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    if (left <= 0) return Status(Code::timeout, "no file descriptors have come from a peer on this host");
    std::vector<pollfd> items{{listener_->fd(), POLLIN, 0}};
    for (const Fd& fd : connections_) items.push_back({fd.get(), POLLIN, 0});
    (void)::poll(items.data(), items.size(), static_cast<int>(std::min<std::int64_t>(left, 1 << 30)));
  }
}

namespace {

Result<Fd> connect_meanwhile(const std::string& name, const std::function<Status()>& meanwhile) {
  TUTTI_ASSIGN(Connecting connecting, Connecting::begin({name, 0}, kConnectMs, kConnectMs));
  for (;;) {
    Result<Fd> fd = connecting.finish();
    if (!fd.ok() || fd.value()) return fd;
    if (meanwhile) TUTTI_TRY(meanwhile());
    pollfd item{connecting.fd(), POLLOUT, 0};
    (void)::poll(&item, 1, connecting.milliseconds_left());
  }
}

}  // namespace

Status send_fds(const std::string& name, const Token& token, int sender, const std::vector<int>& fds,
                const std::function<Status()>& meanwhile) {
  if (fds.size() > FdSocket::kMaxFds) {
    return invalid_argument(fmt::format("{} file descriptors at once; at most {} go", fds.size(), FdSocket::kMaxFds));
  }
  TUTTI_ASSIGN(const Fd fd, connect_meanwhile(name, meanwhile));
  TUTTI_TRY(check_same_user(fd.get()));
  FdMessage sent{token, sender};
  Control control{};
  iovec data{&sent, sizeof sent};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(part), fds.data(), sizeof(int) * fds.size());
  }
  if (::sendmsg(fd.get(), &message, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof sent)) {
    return system_error(fmt::format("cannot send file descriptors to {}", name), errno);
  }
  return {};
}

}  // namespace tutti::sockets
