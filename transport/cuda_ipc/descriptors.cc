#if TUTTI_HAS_CUDA
#include "transport/cuda_ipc/descriptors.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <utility>

namespace tutti::transport {

Status DescriptorExchange::listen(IpcPeerInfo& info) {
  TUTTI_ASSIGN(socket_, sockets::FdSocket::listen());
  token_ = sockets::random_token();
  std::strncpy(info.socket, socket_->name().c_str(), sizeof(info.socket) - 1);
  std::memcpy(info.token, token_.data(), sizeof(info.token));
  return {};
}

Status DescriptorExchange::send(const IpcPeerInfo& to, std::uint64_t message, int descriptor) const {
  sockets::Token token;
  std::memcpy(token.data(), to.token, token.size());
  return sockets::send_fds(to.socket, token, number_of(rank_, message), {descriptor});
}

Result<sockets::Fd> DescriptorExchange::take(int from, std::uint64_t message,
                                             const std::function<bool(int rank)>& alive,
                                             const std::function<std::string(int rank)>& name,
                                             std::chrono::milliseconds deadline) {
  constexpr auto kLookEvery = std::chrono::milliseconds(20);
  const int sender = number_of(from, message);
  const auto until = std::chrono::steady_clock::now() + deadline;
  for (;;) {
    if (const auto found = fd_messages_.find(sender); found != fd_messages_.end()) {
      sockets::Fd fd = std::move(found->second);
      fd_messages_.erase(found);
      return fd;
    }
    const auto now = std::chrono::steady_clock::now();
    Result<sockets::FdSocket::Received> received = socket_->accept_fds(std::min(until, now + kLookEvery), token_);
    if (received.ok()) {
      sockets::FdSocket::Received came = received.take();
      if (came.fds.size() == 1) fd_messages_[came.sender] = std::move(came.fds[0]);
      continue;
    }
    if (received.status().code() != Code::timeout) return received.status();
    if (!alive(from)) {
      return Status(Code::peer_died, name(from) + " died while device memory was shared");
    }
    if (now >= until) {
      return Status(Code::timeout,
                    fmt::format("{} has not shared its device memory within {} ms", name(from), deadline.count()));
    }
  }
}

}  // namespace tutti::transport
#endif
