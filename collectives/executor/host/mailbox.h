// One direction between two ranks: a ring of slots in the receiver's window, with a counter of slots filled (written by
// the sender) and one of slots emptied (written by the receiver).
//
// A message takes one slot, where its bytes or only its place are, or several, one behind the other: then they are
// copied through them. The first slot of a message says what it is. Slots are emptied in the order in which they were
// filled, so a sender whose message went by place knows by the counter that it has been read.
#pragma once

#include <cstddef>
#include <cstdint>

#include "collectives/executor/host/wait.h"
#include "transport/transport.h"

namespace tutti::executor {

/// In front of each slot's payload; only the first slot of a message fills in the message's fields, the others only
/// place and payload_bytes.
struct alignas(transport::kCacheLine) SlotHeader {
  std::uint64_t message_bytes = 0;
  std::uint64_t message_count = 0;
  transport::Handle place = 0;  // 0: the payload follows. Once sent, changed by take_place() only
  std::uint64_t payload_bytes = 0;
  std::int32_t tag = 0;
  std::uint8_t type = 0;
};

/// A view of one; costs nothing to copy.
class Mailbox {
 public:
  /// `bytes`: a multiple of a cache line, at least five of them.
  Mailbox(std::byte* memory, std::size_t bytes);

  std::uint64_t slots() const { return slots_; }
  std::size_t payload() const { return payload_; }  // bytes in a slot
  std::atomic<std::uint64_t>& filled() const { return counters_->filled.count; }
  std::atomic<std::uint64_t>& emptied() const { return counters_->emptied.count; }

  std::byte* slot(std::uint64_t number) const { return ring_ + (number % slots_) * (sizeof(SlotHeader) + payload_); }
  SlotHeader& header(std::uint64_t number) const { return *reinterpret_cast<SlotHeader*>(slot(number)); }
  std::byte* data(std::uint64_t number) const { return slot(number) + sizeof(SlotHeader); }
  /// A copy, for the receiver: the sender may be taking the place back at this moment.
  SlotHeader arrived(std::uint64_t number) const;
  /// A message by place is taken once: by its receiver, or back by its sender after a failure. What was there before.
  transport::Handle take_place(std::uint64_t number) const;
  static constexpr transport::Handle kTaken = ~transport::Handle{0};

 private:
  struct Counters {
    transport::SignalCell filled;
    transport::SignalCell emptied;
  };
  Counters* counters_;
  std::byte* ring_;
  std::uint64_t slots_;
  std::size_t payload_;
};

/// Raises a counter of a mailbox, and wakes the one who waits for it if it sleeps.
void raise(std::atomic<std::uint64_t>& counter, std::uint64_t count, transport::Board& of_waiter);

}  // namespace tutti::executor
