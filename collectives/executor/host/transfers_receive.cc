// Receiving: which message belongs to which receive, and what becomes of those that came before they were wanted.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "collectives/executor/host/transfers.h"
#include "collectives/reduce/reduce.h"

namespace tutti::executor {

void Transfers::post(int index) {
  const int peer = at(index).transfer.peer;
  const bool any = peer == kAnySource;
  if (kept_ > 0) {
    for (int i = 0; i < (any ? ranks_ : 1); ++i) {
      if (take_unexpected(index, any ? (turn_ + i) % ranks_ : peer)) return;
    }
  }
  append(any ? any_ : from(peer).posted, index);
  if (!any) open_receiving(peer);
}

bool Transfers::take_unexpected(int index, int peer) {
  Incoming& in = from(peer);
  const Transfer& t = at(index).transfer;
  const auto found = std::find_if(in.unexpected.begin(), in.unexpected.end(),
                                  [&](const Unexpected& message) { return message.tag == t.tag; });
  if (found == in.unexpected.end()) return false;
  if (!fits(peer, found->count, found->type, found->tag, t)) return true;
  // The last one may still be on its way: then the rest goes where it belongs.
  const bool partial = in.arrival.unexpected && std::next(found) == in.unexpected.end();
  const std::size_t here = partial ? in.arrival.done : found->bytes;
  if (here > 0) std::memcpy(t.buffer, found->data.get(), here);
  kept_ -= cost(found->bytes);
  in.unexpected.erase(found);
  if (t.peer == kAnySource) turn_ = (peer + 1) % ranks_;
  if (partial) {
    in.arrival.unexpected = false;
    in.arrival.message = index;
    in.arrival.to = static_cast<std::byte*>(t.buffer);
    open_receiving(peer);
  } else {
    deliver(index, peer);
  }
  return true;
}

void Transfers::deliver(int index, int peer) {
  if (int* source = at(index).transfer.source; source != nullptr) *source = peer;
  finish(index);
}

bool Transfers::receive(int peer) {
  Incoming& in = from(peer);
  bool moved = false;
  while (in.box.filled().load(std::memory_order_acquire) != in.box.passed()) {
    const SlotHeader header = in.box.next().copy();
    if (!in.arrival.active() && !begin_arrival(peer, header)) break;
    if (!empty_slot(peer, header)) break;
    moved = true;
    Arrival& arrival = in.arrival;
    if (arrival.message != kNone) at(arrival.message).batch->still_since = 0;
    if (arrival.done < arrival.bytes) continue;
    const int index = arrival.message;
    arrival = {};
    if (index == kNone) continue;
    const bool any = at(index).transfer.peer == kAnySource;
    deliver(index, peer);
    if (!any) continue;
    turn_ = (peer + 1) % ranks_;  // the next one is another rank's, if that has any
    break;
  }
  return moved;
}

int Transfers::match(int peer, std::int32_t tag) {
  struct Found {
    int index = kNone;
    int previous = kNone;
  };
  const auto first_in = [&](const List& list) {
    Found found;
    for (found.index = list.first; found.index != kNone; found.index = at(found.index).next) {
      if (at(found.index).transfer.tag == tag) break;
      found.previous = found.index;
    }
    return found;
  };
  Incoming& in = from(peer);
  const Found posted = first_in(in.posted);
  if (any_.first == kNone) return posted.index == kNone ? kNone : take_after(in.posted, posted.previous);
  const Found any = first_in(any_);
  if (any.index == kNone && posted.index == kNone) return kNone;
  if (any.index == kNone || (posted.index != kNone && at(posted.index).number < at(any.index).number)) {
    return take_after(in.posted, posted.previous);
  }
  return take_after(any_, any.previous);
}

bool Transfers::begin_arrival(int peer, const SlotHeader& header) {
  Incoming& in = from(peer);
  const int index = match(peer, header.tag);
  if (index != kNone) {
    const Transfer& receive = at(index).transfer;
    if (!fits(peer, header.message_count, header.type, header.tag, receive)) return false;
    in.arrival = {index, false, static_cast<std::byte*>(receive.buffer), header.message_bytes, 0};
    open_receiving(peer);
    return true;
  }
  const bool in_the_way = in.posted.first != kNone || any_.first != kNone;
  return in_the_way && keep(in, header);
}

bool Transfers::keep(Incoming& in, const SlotHeader& header) {
  const std::size_t bytes = header.message_bytes;
  if (!has_room(bytes)) return false;
  Unexpected message{header.tag, header.type, header.message_count, bytes, nullptr};
  message.data.reset(new (std::nothrow) std::byte[std::max<std::size_t>(bytes, 1)]);
  if (message.data == nullptr) return false;
  in.arrival = {kNone, true, message.data.get(), bytes, 0};
  in.unexpected.push_back(std::move(message));
  kept_ += cost(bytes);
  return true;
}

bool Transfers::empty_slot(int peer, const SlotHeader& header) {
  Incoming& in = from(peer);
  Arrival& arrival = in.arrival;
  std::byte* to = arrival.to + arrival.done;
  std::size_t arrived = header.payload_bytes;
  if (header.place != 0) {
    arrived = arrival.bytes;
    if (in.box.next().take() == SlotHeader::kTaken) {  // its sender has seen a failure
      failure_ = health_.status();
      return false;
    }
    const std::byte* from = transport_.reach(peer, header.place);
    if (from == nullptr) {
      const Status read = transport_.read(peer, header.place, 0, to, arrived);
      if (!read.ok()) {
        failure_ = waiter_.unreachable(peer, read);
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
  in.box.pass(in.box.emptied(), *in.board);
  return true;
}

bool Transfers::fits(int peer, std::uint64_t count, std::uint8_t type, std::int32_t tag, const Transfer& receive) {
  if (count == receive.count && type == static_cast<std::uint8_t>(receive.type)) return true;
  const std::string with_tag = tag == 0 ? "" : fmt::format(" with tag {}", tag);
  failure_ =
      health_.fail(Code::mismatch, fmt::format("{} sends {} x {} to {}{}, which receives {} x {}", waiter_.name()(peer),
                                               count, name_of(static_cast<DataType>(type)), waiter_.name()(rank_),
                                               with_tag, receive.count, name_of(receive.type)));
  return false;
}

}  // namespace tutti::executor
