// UCX as one process has it: a context with one worker, and what they are told (ucx.h, "What UCX is told").
// Errors: unsupported, when UCX finds nothing to go by or takes too short a header; else what UCX's own code means.
// Threads: one at a time: the wire's mutex guards the worker.
// Limits: kInline bytes of a put go with its message, which has kMostMessage bytes or fewer.
#pragma once

#ifdef TUTTI_HAS_UCX

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "transport/ucx/ucp.h"
#include "transport/wire/wire.h"

namespace tutti::ucx {

/// Puts up to so many bytes go with their message: they are copied, and completed at once. Beyond, UCX takes them from
/// where they are. A message is UCX's header of an active message, which over TCP may have 8139 bytes.
inline constexpr std::size_t kInline = 2048;
inline constexpr std::size_t kMostMessage = 4096;

// An address: this, a word of the process's own that the job's ranks alone are told, and UCX's address.
inline constexpr std::string_view kMagic = "tutti ucx 2\n";
inline constexpr std::size_t kAddressAt = kMagic.size() + sizeof(std::uint64_t);

/// Returns what the messages between two ranks carry, so that an unauthenticated peer that finds UCX's port cannot pass
/// for either.
std::uint64_t pass_between(std::string_view one_address, std::string_view other_address);

class Context {
 public:
  static Result<std::unique_ptr<Context>> open(const transport::WireJob& job);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const Ucp& ucp() const { return ucp_; }
  ucp_worker_h worker() const { return worker_; }
  ucp_context_h context() const { return context_; }
  const std::string& address() const { return address_; }
  const std::string& devices() const { return devices_; }
  /// Returns true if UCX may go by RDMA; else it has TCP (or shared memory) alone.
  bool rdma() const { return rdma_; }
  int event() const { return event_; }  // readable when there is something to move
  std::size_t message_bytes() const { return message_bytes_; }
  /// Returns how much of a large put goes with one message.
  std::size_t piece_bytes() const { return piece_bytes_; }
  bool by_pieces() const { return piece_bytes_ != SIZE_MAX; }

 private:
  explicit Context(const Ucp& ucp) : ucp_(ucp) {}
  Status start(const transport::WireJob& job);
  Status start_worker();

  const Ucp& ucp_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  std::string address_;
  std::string devices_;
  bool rdma_ = false;
  int event_ = -1;
  std::size_t message_bytes_ = kMostMessage;
  std::size_t piece_bytes_ = SIZE_MAX;
};

}  // namespace tutti::ucx

#endif
