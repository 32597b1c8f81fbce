// One direction between two ranks: a ring of slots in the receiver's window, and two counters. The sender counts the
// slots that it has filled, the receiver those that it has emptied.
// How: a message takes one slot, which holds its bytes or only its place, or it is copied through several slots in a
//   row. The first slot of a message says what it is. Slots are emptied in the order in which they were filled. So the
//   sender of a message by place knows by the counter that it has been read.
// Threads: one at a time for each end. The two ends may be in different processes: take() gives a place to one of them
//   only.
// Limits: a mailbox has a multiple of kCacheLine bytes, and at least 16 lines.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "collectives/executor/wait/wait.h"
#include "transport/transport.h"

namespace tutti::executor {

/// In front of each slot's payload; only the first slot of a message fills in the message's fields, the others only
/// place and payload_bytes.
struct alignas(transport::kCacheLine) SlotHeader {
  std::uint64_t message_bytes = 0;
  std::uint64_t message_count = 0;
  transport::Handle place = 0;  // 0: the payload follows. Once sent, changed by take() only
  std::uint64_t payload_bytes = 0;
  std::int32_t tag = 0;
  std::uint8_t type = 0;

  /// The message's fields. One by one: a header made elsewhere and copied as a whole would stall the copy.
  void write(std::uint64_t bytes, std::uint64_t count, std::int32_t message_tag, DataType element) {
    message_bytes = bytes;
    message_count = count;
    tag = message_tag;
    type = static_cast<std::uint8_t>(element);
  }

  // A message by place is taken once: by its receiver, or back by its sender after a failure.
  static constexpr transport::Handle kTaken = ~transport::Handle{0};
  /// Returns what was there before.
  transport::Handle take() { return std::atomic_ref<transport::Handle>(place).exchange(kTaken); }
  /// For the receiver: the sender may be taking it back at this moment.
  transport::Handle sent_place() { return std::atomic_ref<transport::Handle>(place).load(std::memory_order_relaxed); }
};

/// The mailbox in `receiver`'s window that `sender` fills.
inline std::byte* mailbox_of(transport::Transport& transport, int receiver, int sender) {
  return transport.window(receiver).mailboxes + static_cast<std::size_t>(sender) * transport.sizes().mailbox;
}

/// A mailbox as its sender or its receiver uses it: with the slot that is next, to be filled or emptied.
class MailboxEnd {
 public:
  /// `bytes`: a multiple of a cache line, at least 16 of them.
  MailboxEnd(std::byte* memory, std::size_t bytes);
  /// The sender's end of a mailbox in a remote window. What the receiver has emptied it signals into this rank's
  /// window, into the cell `emptied` of the mailbox for the other direction (whose own emptied count goes to the remote
  /// rank).
  static MailboxEnd remote_outgoing(std::byte* shadow, std::byte* other_direction, std::size_t bytes);
  /// The receiver's end of a mailbox that a remote rank fills. `shadow`: of the other direction's.
  static MailboxEnd remote_incoming(std::byte* memory, std::byte* shadow, std::size_t bytes);

  std::uint64_t slots() const { return slots_; }
  std::size_t payload() const { return stride_ - sizeof(SlotHeader); }  // bytes in a slot
  std::atomic<std::uint64_t>& filled() const { return *filled_; }
  std::atomic<std::uint64_t>& emptied() const { return *emptied_; }

  SlotHeader& next() const { return *reinterpret_cast<SlotHeader*>(next_); }
  std::byte* data() const { return next_ + sizeof(SlotHeader); }
  /// The slot that was filled last, header and all.
  const std::byte* last() const { return (next_ == ring_ ? end_ : next_) - stride_; }
  /// How many slots have passed.
  std::uint64_t passed() const { return passed_; }
  /// The next slot has been filled, or emptied: raises that counter, and wakes the other side if it sleeps.
  void pass(std::atomic<std::uint64_t>& counter, transport::Board& of_other_side) {
    counter.store(++passed_, std::memory_order_release);
    wake_sleeper(of_other_side.sleep, counter);
    next_ += stride_;
    if (next_ == end_) next_ = ring_;
  }
  /// The slot that was the `number`-th to be next, from 0.
  SlotHeader& slot(std::uint64_t number) const {
    return *reinterpret_cast<SlotHeader*>(ring_ + number % slots_ * stride_);
  }

 private:
  struct Counters {
    transport::SignalCell filled;
    transport::SignalCell emptied;
  };
  std::atomic<std::uint64_t>* filled_;
  std::atomic<std::uint64_t>* emptied_;
  std::byte* ring_;
  std::uint64_t slots_;
  std::size_t stride_;
  std::byte* end_;
  std::byte* next_;
  std::uint64_t passed_ = 0;
};

}  // namespace tutti::executor
