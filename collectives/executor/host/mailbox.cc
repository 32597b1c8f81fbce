#include "collectives/executor/host/mailbox.h"

#include <algorithm>
#include <atomic>

#include "base/check.h"

namespace tutti::executor {

using transport::Handle;
using transport::kCacheLine;

namespace {

constexpr std::size_t kFewestSlots = 4;
constexpr std::size_t kLargestSlot = std::size_t{16} << 10;

}  // namespace

Mailbox::Mailbox(std::byte* memory, std::size_t bytes)
    : counters_(reinterpret_cast<Counters*>(memory)), ring_(memory + sizeof(Counters)) {
  TUTTI_CHECK_EQ(bytes % kCacheLine, std::size_t{0});
  const std::size_t room = bytes - sizeof(Counters);
  slots_ = std::max(kFewestSlots, room / kLargestSlot);
  payload_ = room / slots_ / kCacheLine * kCacheLine - sizeof(SlotHeader);
  TUTTI_CHECK_LE(kCacheLine, payload_);
}

SlotHeader Mailbox::arrived(std::uint64_t number) const {
  SlotHeader& sent = header(number);
  return {sent.message_bytes, sent.message_count, std::atomic_ref<Handle>(sent.place).load(std::memory_order_relaxed),
          sent.payload_bytes, sent.tag,           sent.type};
}

Handle Mailbox::take_place(std::uint64_t number) const {
  return std::atomic_ref<Handle>(header(number).place).exchange(kTaken);
}

void raise(std::atomic<std::uint64_t>& counter, std::uint64_t count, transport::Board& of_waiter) {
  counter.store(count, std::memory_order_release);
  wake_sleeper(of_waiter.doze, counter);
}

}  // namespace tutti::executor
