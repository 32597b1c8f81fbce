// Sending: into slots, or by place.

#include <sched.h>

#include <algorithm>
#include <cstring>

#include "collectives/executor/host/transfers.h"

namespace tutti::executor {

using transport::Handle;

namespace {

constexpr std::size_t kByPlaceBytes = 8192;        // from here on one copy by place beats two through slots
constexpr std::int64_t kWithdrawNs = 500'000'000;  // for a receiver that is just reading

}  // namespace

bool Transfers::reachable_by_peer(Handle handle) const {
  const transport::Capabilities& can = transport_.capabilities();
  return can.any_pointer || can.cross_memory || transport::is_registered(handle);
}

bool Transfers::send(int peer) {
  Outgoing& out = to(peer);
  bool moved = false;
  if (out.handed_over.first != kNone) {
    const std::uint64_t emptied = out.box.emptied().load(std::memory_order_acquire);
    while (out.handed_over.first != kNone && at(out.handed_over.first).handed_over <= emptied) {
      finish(take_after(out.handed_over, kNone));
      moved = true;
    }
  }
  while (out.waiting.first != kNone) {
    const Sent sent = send_more(out, at(out.waiting.first));
    if (sent == Sent::nothing) break;
    at(out.waiting.first).batch->still_since = 0;
    moved = true;
    if (sent == Sent::some) break;
    const int index = take_after(out.waiting, kNone);
    if (sent == Sent::all) finish(index);
    if (sent == Sent::handed_over) append(out.handed_over, index);
  }
  return moved;
}

Transfers::Sent Transfers::send_more(Outgoing& out, Message& message) {
  const Transfer& t = message.transfer;
  const std::size_t bytes = t.count * size_of(t.type);
  const std::uint64_t emptied = out.box.emptied().load(std::memory_order_acquire);
  Sent sent = Sent::nothing;
  while (!message.begun || message.done < bytes) {
    if (out.box.passed() - emptied == out.box.slots()) return sent;
    SlotHeader& header = out.box.next();
    if (!message.begun) {
      message.begun = true;
      header = {bytes, t.count, 0, 0, t.tag, static_cast<std::uint8_t>(t.type)};
      const Handle place = bytes >= kByPlaceBytes ? transport_.handle_of(t.buffer, bytes) : 0;
      if (place != 0 && reachable_by_peer(place)) {
        header.place = place;
        out.box.pass(out.box.filled(), *out.board);
        message.handed_over = out.box.passed();
        return Sent::handed_over;
      }
    }
    header.place = 0;  // an earlier message may have left its own here
    header.payload_bytes = std::min(out.box.payload(), bytes - message.done);
    if (bytes > 0) {  // the buffer of an empty message may be null
      std::memcpy(out.box.data(), static_cast<const std::byte*>(t.buffer) + message.done, header.payload_bytes);
    }
    message.done += header.payload_bytes;
    bytes_ += header.payload_bytes;
    out.box.pass(out.box.filled(), *out.board);
    sent = Sent::some;
  }
  return Sent::all;
}

void Transfers::withdraw(const Outgoing& out, const Message& message) {
  if (out.box.slot(message.handed_over - 1).take() != SlotHeader::kTaken) return;
  const std::int64_t since = now_ns();
  while (out.box.emptied().load(std::memory_order_acquire) < message.handed_over &&
         transport_.alive(message.transfer.peer) && now_ns() - since < kWithdrawNs) {
    sched_yield();
  }
}

}  // namespace tutti::executor
