#include "transport/bootstrap/fd_socket.h"

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
#include "transport/bootstrap/secret.h"

namespace tutti::bootstrap {
namespace {

constexpr int kConnectMs = 10'000;
/// Connections that have said nothing yet; the oldest is dropped first.
constexpr std::size_t kMaxSilent = 128;

/// The bytes beside the descriptors. Both ends are the same program on the same host.
struct Parcel {
  Token token{};
  std::int32_t sender = -1;
};

union Control {
  cmsghdr header;  // for its alignment
  char bytes[CMSG_SPACE(sizeof(int) * FdSocket::kMaxFds)];
};

/// Nothing: not there yet. A sender of -1: not a parcel with this token.
std::optional<FdSocket::Received> try_receive(int fd, const Token& token) {
  Parcel parcel;
  Control control{};
  iovec data{&parcel, sizeof parcel};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  const ssize_t got = ::recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
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
  // The parcel is smaller than any socket's buffer, so a sender of ours never sends it in parts.
  const bool whole = got == static_cast<ssize_t>(sizeof parcel) && (message.msg_flags & MSG_CTRUNC) == 0;
  if (whole && sodium_memcmp(parcel.token.data(), token.data(), token.size()) == 0) received.sender = parcel.sender;
  return received;
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

Result<FdSocket::Received> FdSocket::accept_fds(std::chrono::steady_clock::time_point deadline, const Token& token) {
  // Each connection is asked before the next one is accepted: most have sent by then, and of those that have not only
  // the last few stay open.
  for (;;) {
    for (auto at = connections_.begin(); at != connections_.end();) {
      std::optional<Received> received = try_receive(at->get(), token);
      if (!received) {
        ++at;
        continue;
      }
      if (received->sender < 0) {
        log::error("refused {}: it does not know the token of this job", describe_peer(at->get()));
      }
      at = connections_.erase(at);
      if (received->sender >= 0) return std::move(*received);
    }
    if (connections_.size() > kMaxSilent) connections_.erase(connections_.begin());
    int error = 0;
    if (Fd fd = listener_->accept(error)) {
      if (const Status status = check_same_user(fd.get()); status.ok()) {
        connections_.push_back(std::move(fd));
      } else {
        log::error("refused {}: {}", describe_peer(fd.get()), status.message());
      }
      continue;
    }
    if (error == EMFILE || error == ENFILE) return system_error("cannot accept file descriptors", error);
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    if (left <= 0) return Status(Code::timeout, "no file descriptors have come from a peer on this host");
    std::vector<pollfd> items{{listener_->fd(), POLLIN, 0}};
    for (const Fd& fd : connections_) items.push_back({fd.get(), POLLIN, 0});
    (void)::poll(items.data(), items.size(), static_cast<int>(std::min<std::int64_t>(left, 1 << 30)));
  }
}

Status send_fds(const std::string& name, const Token& token, int sender, const std::vector<int>& fds) {
  if (fds.size() > FdSocket::kMaxFds) {
    return invalid_argument(fmt::format("{} file descriptors at once; at most {} go", fds.size(), FdSocket::kMaxFds));
  }
  TUTTI_ASSIGN(const Fd fd, connect_to({name, 0}, kConnectMs));
  TUTTI_TRY(check_same_user(fd.get()));
  Parcel parcel{token, sender};
  Control control{};
  iovec data{&parcel, sizeof parcel};
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
  if (::sendmsg(fd.get(), &message, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof parcel)) {
    return system_error(fmt::format("cannot send file descriptors to {}", name), errno);
  }
  return {};
}

}  // namespace tutti::bootstrap
