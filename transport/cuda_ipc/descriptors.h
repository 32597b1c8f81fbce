// How the processes of a communicator send each other descriptors of device memory: by a socket whose name and token
// are in each rank's IpcPeerInfo.
//
// Threads: one at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "base/status.h"
#include "transport/cuda_ipc/region_log.h"
#include "transport/sockets/fd_socket.h"

namespace tutti::transport {

class DescriptorExchange {
 public:
  /// `ranks` of the communicator, of which this is `rank`.
  DescriptorExchange(int rank, std::size_t ranks) : rank_(rank), ranks_(ranks) {}
  /// Opens the socket, and writes its name and token to `info`.
  Status listen(IpcPeerInfo& info);

  /// `message`: 0 for the window, else the number of the event. Errors: the receiver has gone.
  Status send(const IpcPeerInfo& to, std::uint64_t message, int descriptor) const;
  /// Waits for the descriptor of a message. `name`: for errors. Errors: peer_died, timeout, system.
  Result<sockets::Fd> take(int from, std::uint64_t message, const std::function<bool(int rank)>& alive,
                           const std::function<std::string(int rank)>& name, std::chrono::milliseconds deadline);

 private:
  int number_of(int sender, std::uint64_t message) const { return static_cast<int>(message * ranks_) + sender; }

  const int rank_;
  const std::size_t ranks_;
  std::optional<sockets::FdSocket> socket_;
  sockets::Token token_{};
  std::map<int, sockets::Fd> fd_messages_;  // that came before they were asked for, by number_of()
};

}  // namespace tutti::transport
