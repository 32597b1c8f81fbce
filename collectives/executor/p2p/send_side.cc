#include "collectives/executor/p2p/send_side.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>

#include "base/clock.h"

namespace tutti::executor {

using transport::Handle;

namespace {

constexpr std::size_t kByPlaceBytes = 8192;        // from here on one copy by place beats two through slots
constexpr std::int64_t kWithdrawNs = 500'000'000;  // for a receiver that is just reading

}  // namespace

SendSide::SendSide(transport::Transport& transport, MessagePool& pool, int rank)
    : transport_(transport), net_(transport.net_links()), pool_(pool) {
  const std::size_t bytes = transport.sizes().mailbox;
  const int ranks = transport.sizes().ranks;
  outgoing_.reserve(static_cast<std::size_t>(ranks));
  for (int peer = 0; peer < ranks; ++peer) {
    const bool remote = net_ != nullptr && net_->is_remote(peer);
    std::byte* there = mailbox_of(transport, peer, rank);
    std::byte* here = mailbox_of(transport, rank, peer);
    outgoing_.push_back({remote ? MailboxEnd::remote_outgoing(there, here, bytes) : MailboxEnd(there, bytes),
                         transport.window(peer).board,
                         {},
                         {},
                         false,
                         remote});
  }
}

void SendSide::start(int index) {
  const int peer = pool_.at(index).transfer.peer;
  Outgoing& out = to(peer);
  pool_.append(out.waiting, index);
  if (out.open) return;
  out.open = true;
  sending_.push_back(peer);
}

bool SendSide::advance() {
  return advance_peers(sending_, outgoing_, [this](int peer) { return send(peer); });
}

void SendSide::drop() {
  for (const int peer : sending_) {
    pool_.each(to(peer).handed_over, [&](const Message& message) { withdraw(to(peer), message); });
    to(peer).waiting = to(peer).handed_over = {};
    to(peer).open = false;
  }
  sending_.clear();
}

bool SendSide::reachable_by_peer(const Outgoing& out, Handle handle) const {
  if (out.remote) return false;
  const transport::Capabilities& can = transport_.capabilities();
  return can.any_pointer || can.cross_memory || transport::is_registered(handle);
}

// A remote link that has broken is found out by the next wait.
void SendSide::pass_filled(int peer) {
  Outgoing& out = to(peer);
  out.box.pass(out.box.filled(), *out.board);
  if (!out.remote) return;
  // The receiver empties the slot before it is filled again, so there is no need to ask whether it has been read.
  transport::Ticket ticket = 0;
  const std::byte* slot = out.box.last();
  const std::size_t bytes = sizeof(SlotHeader) + reinterpret_cast<const SlotHeader*>(slot)->payload_bytes;
  (void)net_->put(peer, 0, slot, slot, bytes, ticket);
  std::erase_if(incomplete_, [this](transport::Ticket t) { return net_->completed(t); });
  if (ticket != 0) incomplete_.push_back(ticket);
  (void)net_->signal(peer, 0, &out.box.filled(), out.box.passed(), 0, transport::Flush::now);
}

bool SendSide::settled() {
  while (!incomplete_.empty() && net_->completed(incomplete_.back())) incomplete_.pop_back();
  return incomplete_.empty() && (net_ == nullptr || net_->idle());
}

bool SendSide::send_at_once(const Transfer& t) {
  Outgoing& out = to(t.peer);
  const std::size_t bytes = t.count * size_of(t.type);
  if (bytes >= kByPlaceBytes || bytes > out.box.payload() || out.busy()) return false;
  if (out.box.passed() - out.box.emptied().load(std::memory_order_acquire) == out.box.slots()) return false;
  SlotHeader& header = out.box.next();
  header.write(bytes, t.count, t.tag, t.type);
  header.place = 0;
  header.payload_bytes = bytes;
  if (bytes > 0) std::memcpy(out.box.data(), t.buffer, bytes);  // the buffer of an empty message may be null
  bytes_ += bytes;
  pass_filled(t.peer);
  return true;
}

bool SendSide::send(int peer) {
  Outgoing& out = to(peer);
  bool moved = false;
  if (!out.handed_over.empty()) {
    const std::uint64_t emptied = out.box.emptied().load(std::memory_order_acquire);
    while (!out.handed_over.empty() && pool_.at(out.handed_over.first).handed_over <= emptied) {
      pool_.finish(pool_.take_after(out.handed_over, MessagePool::kNone));
      moved = true;
    }
  }
  while (!out.waiting.empty()) {
    const Sent sent = send_more(peer, pool_.at(out.waiting.first));
    if (sent == Sent::nothing) break;
    pool_.at(out.waiting.first).batch->still_since = 0;
    moved = true;
    if (sent == Sent::some) break;
    const int index = pool_.take_after(out.waiting, MessagePool::kNone);
    if (sent == Sent::all) pool_.finish(index);
    if (sent == Sent::handed_over) pool_.append(out.handed_over, index);
  }
  return moved;
}

SendSide::Sent SendSide::send_more(int peer, Message& message) {
  Outgoing& out = to(peer);
  const Transfer& t = message.transfer;
  const std::size_t bytes = t.count * size_of(t.type);
  const std::uint64_t emptied = out.box.emptied().load(std::memory_order_acquire);
  Sent sent = Sent::nothing;
  while (!message.begun || message.done < bytes) {
    if (out.box.passed() - emptied == out.box.slots()) return sent;
    SlotHeader& header = out.box.next();
    if (!message.begun) {
      message.begun = true;
      header.write(bytes, t.count, t.tag, t.type);
      const Handle place = bytes >= kByPlaceBytes ? transport_.handle_of(t.buffer, bytes) : 0;
      if (place != 0 && reachable_by_peer(out, place)) {
        header.place = place;
        pass_filled(peer);
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
    pass_filled(peer);
    sent = Sent::some;
  }
  return Sent::all;
}

void SendSide::withdraw(const Outgoing& out, const Message& message) {
  if (out.box.slot(message.handed_over - 1).take() != SlotHeader::kTaken) return;
  const std::int64_t since = now_ns();
  while (out.box.emptied().load(std::memory_order_acquire) < message.handed_over &&
         transport_.alive(message.transfer.peer) && now_ns() - since < kWithdrawNs) {
    sched_yield();
  }
}

}  // namespace tutti::executor
