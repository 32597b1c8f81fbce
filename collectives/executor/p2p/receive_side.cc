#include "collectives/executor/p2p/receive_side.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>

#include "collectives/reduce/reduce.h"

namespace tutti::executor {

ReceiveSide::ReceiveSide(transport::Transport& transport, Waiter& waiter, Health& health, MessagePool& pool,
                         const PendingTransfers& pending, int rank, std::size_t streaming_above, std::size_t room)
    : transport_(transport),
      net_(transport.net_links()),
      waiter_(waiter),
      health_(health),
      pool_(pool),
      pending_(pending),
      ranks_(transport.sizes().ranks),
      streaming_above_(streaming_above),
      room_(room) {
  const std::size_t bytes = transport.sizes().mailbox;
  incoming_.reserve(static_cast<std::size_t>(ranks_));
  for (int peer = 0; peer < ranks_; ++peer) {
    const bool remote = net_ != nullptr && net_->is_remote(peer);
    std::byte* there = mailbox_of(transport, peer, rank);
    std::byte* here = mailbox_of(transport, rank, peer);
    incoming_.push_back({remote ? MailboxEnd::remote_incoming(here, there, bytes) : MailboxEnd(here, bytes),
                         transport.window(peer).board,
                         {},
                         {},
                         {},
                         false,
                         remote});
  }
}

void ReceiveSide::open(int peer) {
  if (from(peer).open) return;
  from(peer).open = true;
  receiving_.push_back(peer);
}

bool ReceiveSide::advance() {
  bool moved = false;
  const bool all = !any_.empty();
  for (int i = 0, first = next_source_; all && i < ranks_; ++i) moved = receive((first + i) % ranks_) || moved;
  return advance_peers(receiving_, incoming_, [&](int peer) { return !all && receive(peer); }) || moved;
}

void ReceiveSide::drop() {
  for (const int peer : receiving_) {
    from(peer).posted = {};
    from(peer).arrival = {};
    from(peer).open = false;
  }
  receiving_.clear();
  any_ = {};
}

std::string ReceiveSide::obstacle(int peer) const {
  const Incoming& in = incoming_[static_cast<std::size_t>(peer)];
  if (in.arrival.active() || in.box.filled().load(std::memory_order_acquire) == in.box.passed()) return "";
  const SlotHeader& header = in.box.next();
  if (has_room(header.message_bytes)) return "";
  return fmt::format(
      ", before which lies one of tag {} that no recv matches; memory_limit leaves no room for its {} bytes",
      header.tag, header.message_bytes);
}

void ReceiveSide::pass_emptied(int peer) {
  Incoming& in = from(peer);
  in.box.pass(in.box.emptied(), *in.board);
  if (in.remote) (void)net_->signal(peer, 0, &in.box.emptied(), in.box.passed(), 0, transport::Flush::now);
}

void ReceiveSide::start(int index) {
  const int peer = pool_.at(index).transfer.peer;
  const bool any = peer == kAnySource;
  if (kept_ > 0) {
    for (int i = 0; i < (any ? ranks_ : 1); ++i) {
      if (take_unexpected(index, any ? (next_source_ + i) % ranks_ : peer)) return;
    }
  }
  pool_.append(any ? any_ : from(peer).posted, index);
  if (!any) open(peer);
}

void ReceiveSide::deliver(int index, int peer) {
  if (int* source = pool_.at(index).transfer.source; source != nullptr) *source = peer;
  pool_.finish(index);
}

bool ReceiveSide::receive(int peer) {
  Incoming& in = from(peer);
  bool moved = false;
  while (in.box.filled().load(std::memory_order_acquire) != in.box.passed()) {
    SlotHeader& header = in.box.next();
    if (!in.arrival.active() && !begin_arrival(peer, header)) break;
    if (!empty_slot(peer, header)) break;
    moved = true;
    Arrival& arrival = in.arrival;
    if (arrival.message != MessagePool::kNone) pool_.at(arrival.message).batch->still_since = 0;
    if (arrival.done < arrival.bytes) continue;
    const int index = arrival.message;
    arrival = {};
    if (index == MessagePool::kNone) continue;
    const bool any = pool_.at(index).transfer.peer == kAnySource;
    deliver(index, peer);
    if (!any) continue;
    next_source_ = (peer + 1) % ranks_;  // the next one is another rank's, if that has any
    break;
  }
  return moved;
}

ReceiveSide::Place ReceiveSide::first_of(const MessageList& list, std::int32_t tag) const {
  Place found;
  for (found.index = list.first; found.index != MessagePool::kNone; found.index = pool_.at(found.index).next) {
    if (pool_.at(found.index).transfer.tag == tag) break;
    found.previous = found.index;
  }
  return found;
}

int ReceiveSide::match(int peer, std::int32_t tag) {
  Incoming& in = from(peer);
  const Place posted = first_of(in.posted, tag);
  const Place any = first_of(any_, tag);
  const bool take_any = any.index != MessagePool::kNone && (posted.index == MessagePool::kNone ||
                                                            pool_.at(any.index).number < pool_.at(posted.index).number);
  if (take_any) return pool_.take_after(any_, any.previous);
  return posted.index == MessagePool::kNone ? MessagePool::kNone : pool_.take_after(in.posted, posted.previous);
}

bool ReceiveSide::begin_arrival(int peer, SlotHeader& header) {
  Incoming& in = from(peer);
  const int index = match(peer, header.tag);
  if (index != MessagePool::kNone) {
    const Transfer& receive = pool_.at(index).transfer;
    if (!fits(header.message_count, header.type, receive)) {
      failure_ = mismatch(peer, header.message_count, header.type, receive);
      return false;
    }
    in.arrival = {index, false, static_cast<std::byte*>(receive.buffer), header.message_bytes, 0};
    open(peer);
    return true;
  }
  const bool in_the_way = !in.posted.empty() || !any_.empty();
  return in_the_way && keep(in, header);
}

bool ReceiveSide::empty_slot(int peer, SlotHeader& header) {
  Incoming& in = from(peer);
  Arrival& arrival = in.arrival;
  std::byte* to = arrival.to + arrival.done;
  std::size_t arrived = header.payload_bytes;
  if (const transport::Handle place = header.sent_place(); place != 0) {
    arrived = arrival.bytes;
    if (header.take() == SlotHeader::kTaken) {  // its sender has seen a failure
      failure_ = health_.status();
      return false;
    }
    const std::byte* from = transport_.reach(peer, place);
    if (from == nullptr) {
      const Status read = transport_.read(peer, place, 0, to, arrived);
      if (!read.ok()) {
        failure_ = waiter_.unreachable(peer, read, pending_.text(peer));
        return false;
      }
    } else {
      void* const destinations[] = {to};
      reduce::copy(destinations, from, arrived, arrived > streaming_above_);
    }
    bytes_ += arrived;
  } else if (arrived > 0) {
    std::memcpy(to, in.box.data(), arrived);
  }
  arrival.done += arrived;
  pass_emptied(peer);
  return true;
}

Status ReceiveSide::mismatch(int peer, std::uint64_t count, std::uint8_t type, const Transfer& receive) const {
  const std::string with_tag = receive.tag == 0 ? "" : fmt::format(" with tag {}", receive.tag);
  return health_.fail(Code::mismatch,
                      fmt::format("{} sends {} x {} to {}{}, which receives {} x {}", waiter_.name()(peer), count,
                                  name_of(static_cast<DataType>(type)), waiter_.name()(waiter_.rank()), with_tag,
                                  receive.count, name_of(receive.type)));
}

// ---- Messages that came before they were wanted

bool ReceiveSide::keep(Incoming& in, const SlotHeader& header) {
  const std::size_t bytes = header.message_bytes;
  if (!has_room(bytes)) return false;
  Unexpected message{header.tag, header.type, header.message_count, bytes, nullptr};
  message.data.reset(new (std::nothrow) std::byte[std::max<std::size_t>(bytes, 1)]);
  if (message.data == nullptr) return false;
  in.arrival = {MessagePool::kNone, true, message.data.get(), bytes, 0};
  in.unexpected.push_back(std::move(message));
  kept_ += cost(bytes);
  return true;
}

bool ReceiveSide::take_unexpected(int index, int peer) {
  Incoming& in = from(peer);
  const Transfer& t = pool_.at(index).transfer;
  const auto found = std::find_if(in.unexpected.begin(), in.unexpected.end(),
                                  [&](const Unexpected& message) { return message.tag == t.tag; });
  if (found == in.unexpected.end()) return false;
  if (!fits(found->count, found->type, t)) {
    failure_ = mismatch(peer, found->count, found->type, t);
    return true;
  }
  // The last one may still be on its way: then the rest goes where it belongs.
  const bool partial = in.arrival.unexpected && std::next(found) == in.unexpected.end();
  const std::size_t here = partial ? in.arrival.done : found->bytes;
  if (here > 0) std::memcpy(t.buffer, found->data.get(), here);
  kept_ -= cost(found->bytes);
  in.unexpected.erase(found);
  if (t.peer == kAnySource) next_source_ = (peer + 1) % ranks_;
  if (partial) {
    in.arrival.unexpected = false;
    in.arrival.message = index;
    in.arrival.to = static_cast<std::byte*>(t.buffer);
    open(peer);
  } else {
    deliver(index, peer);
  }
  return true;
}

}  // namespace tutti::executor
