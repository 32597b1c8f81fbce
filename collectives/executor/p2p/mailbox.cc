#include "collectives/executor/p2p/mailbox.h"

#include <algorithm>

#include "base/check.h"

namespace tutti::executor {

using transport::kCacheLine;

namespace {

constexpr std::size_t kFewestSlots = 4;
constexpr std::size_t kLargestSlot = std::size_t{16} << 10;

}  // namespace

MailboxEnd MailboxEnd::remote_outgoing(std::byte* shadow, std::byte* other_direction, std::size_t bytes) {
  MailboxEnd end(shadow, bytes);
  end.emptied_ = &reinterpret_cast<Counters*>(other_direction)->emptied.count;
  return end;
}

MailboxEnd MailboxEnd::remote_incoming(std::byte* memory, std::byte* shadow, std::size_t bytes) {
  MailboxEnd end(memory, bytes);
  end.emptied_ = &reinterpret_cast<Counters*>(shadow)->emptied.count;
  return end;
}

MailboxEnd::MailboxEnd(std::byte* memory, std::size_t bytes)
    : filled_(&reinterpret_cast<Counters*>(memory)->filled.count),
      emptied_(&reinterpret_cast<Counters*>(memory)->emptied.count),
      ring_(memory + sizeof(Counters)),
      next_(ring_) {
  TUTTI_CHECK_EQ(bytes % kCacheLine, std::size_t{0});
  const std::size_t room = bytes - sizeof(Counters);
  slots_ = std::max(kFewestSlots, room / kLargestSlot);
  stride_ = room / slots_ / kCacheLine * kCacheLine;
  end_ = ring_ + slots_ * stride_;
  TUTTI_CHECK_LE(kCacheLine, payload());
}

}  // namespace tutti::executor
