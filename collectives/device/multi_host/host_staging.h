// Device memory of ranks that no kernel reaches: in a job of several hosts, and before ranks have opened their memory
// to each other, a call's data goes through pinned memory of the host, fragment by fragment. What the stream does and
// what the communicator's own thread does (the proxy) follow each other by two counters in that memory, so neither the
// caller nor the proxy waits for the GPU by the driver:
//
//   stream   in 0, told | in 1, told | in 2, told | in 3, told | until 0 is done, out 0 | in 4, told | until 1 is ...
//   proxy               | fragment 0     | fragment 1     | fragment 2 ...
//
// There are kSlots slots, which fragments use in their order: while one fragment is on the network the next ones are
// copied. Fragments are numbered from 1 over all calls, and the stream goes on whether a fragment has ended well or
// not: what is copied out of one that has failed means nothing.
//
// Slots may lie in device memory too, for fragments in which a NIC reads and writes them and the host touches no byte
// (GPUDirect; gdr_moves.h). Such fragments are counted apart, since they use their slots in their own order.
//
// Threads: reached(), end() and settle_gdr() by the proxy; the rest by the caller's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "transport/wire/wire.h"
#include "tutti/types.hpp"

namespace tutti {

class HostStaging {
 public:
  static constexpr std::uint64_t kSlots = 4;
  /// Returns the bytes of a slot, in each direction, if all slots together may take `room` bytes. Errors: memory_limit.
  static Result<std::size_t> slot_bytes(std::size_t room);

  /// Makes slots for device memory of this GPU (-1: the calling thread's), of at most `room` bytes of pinned memory.
  /// Errors: unsupported (no CUDA in this build, no driver, a GPU whose streams cannot wait for values), and what the
  /// driver says.
  static Result<std::unique_ptr<HostStaging>> create(int device, std::size_t slot_bytes,
                                                     std::size_t room = std::numeric_limits<std::size_t>::max());
  /// Waits until the streams are through with it, for `limit` at most; what they could still use is never freed then.
  /// REQUIRES: all fragments have been ended.
  virtual ~HostStaging() = default;
  virtual void set_limit(std::int64_t ns) = 0;

  virtual int device() const = 0;
  virtual std::size_t memory() const = 0;  // pinned, on_device() and direct, in bytes

  /// Return the slots of fragment `fragment`.
  virtual std::byte* input(std::uint64_t fragment) = 0;
  virtual std::byte* output(std::uint64_t fragment) = 0;
  /// In place of slots, for a fragment that needs more: so many bytes, until the next fragment that asks for some.
  /// Errors: memory_limit (`room`), what the driver says.
  virtual Result<std::byte*> block(std::size_t bytes) = 0;
  /// Device memory of a slot's size, the same every time; fragments use it in their order. Allocated at the first time,
  /// so before kernels run that wait for other ranks. Errors: what the driver says.
  virtual Result<std::byte*> on_device() = 0;

  /// The slots in device memory, and how a NIC reaches them. The descriptor is this object's.
  struct Direct {
    std::byte* base = nullptr;
    std::size_t bytes = 0;
    transport::Dmabuf memory;
  };
  /// Makes them. Errors: unsupported (the GPU or its driver cannot, and why), memory_limit, what the driver says.
  virtual Result<Direct> open_gdr() = 0;
  /// Peers may still write there: they stay for as long as the process does.
  virtual void abandon_gdr() = 0;
  /// Return where the slots of direct fragment `fragment` (from 0) begin in that memory; the same on all ranks.
  std::size_t gdr_input(std::uint64_t fragment) const { return slot_at(fragment, 0); }
  std::size_t gdr_output(std::uint64_t fragment) const { return slot_at(fragment, 1); }
  /// Makes what NICs have written there, as far as this process knows, visible to later work in streams.
  virtual Status settle_gdr() = 0;

  /// Returns ok if fragments can be put into the stream. Errors: unsupported (a capture: counters grow with each call).
  virtual Status check(Stream stream) = 0;
  /// The number of the first of `count` fragments, which put() is for.
  virtual std::uint64_t begin(std::size_t count) = 0;
  struct Piece {
    std::byte* device = nullptr;
    std::byte* slot = nullptr;
    std::size_t bytes = 0;
  };
  struct Fragment {
    std::vector<Piece> in;   // before it, from device memory
    std::vector<Piece> out;  // after it, to device memory
    // Put into the stream themselves, each if it is there: what goes before `in`, and what goes behind `out`.
    std::function<Status()> before;
    std::function<Status()> after;
  };
  /// Puts all copies and waits of these fragments into the stream, behind those of the fragments before; returns then.
  /// Errors: what the driver says; fragments that are in the stream will still be waited for there.
  virtual Status put(std::uint64_t first, std::span<const Fragment> fragments, Stream stream) = 0;

  /// The stream has come to this fragment, and its data is there.
  virtual bool reached(std::uint64_t fragment) const = 0;
  /// The fragment is done, well or not. In their order.
  virtual void end(std::uint64_t fragment) = 0;

 protected:
  explicit HostStaging(std::size_t slot_bytes) : slot_bytes_(slot_bytes) {}
  std::size_t slot_at(std::uint64_t fragment, std::size_t direction) const {
    return (fragment % kSlots * 2 + direction) * slot_bytes_;
  }
  const std::size_t slot_bytes_;
};

}  // namespace tutti
