#include "collectives/executor/p2p/transfers.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "collectives/reduce/reduce.h"

namespace tutti::executor {

using transport::Handle;

namespace {

constexpr std::uint64_t kTurnsPerLook = 256;  // turns in which something has moved
constexpr std::size_t kByPlaceBytes = 8192;   // from here on one copy by place beats two through slots

}  // namespace

Transfers::Transfers(transport::Transport& transport, Waiter& waiter, Health& health, int rank,
                     std::size_t streaming_above, std::size_t room)
    : transport_(transport),
      net_(transport.far_links()),
      waiter_(waiter),
      health_(health),
      rank_(rank),
      ranks_(transport.sizes().ranks),
      streaming_above_(streaming_above),
      room_(room) {
  const std::size_t bytes = transport.sizes().mailbox;
  const auto mailbox = [&](int receiver, int sender) {
    return transport_.window(receiver).mailboxes + static_cast<std::size_t>(sender) * bytes;
  };
  outgoing_.reserve(static_cast<std::size_t>(ranks_));
  incoming_.reserve(static_cast<std::size_t>(ranks_));
  for (int peer = 0; peer < ranks_; ++peer) {
    const bool remote = net_ != nullptr && net_->far(peer);
    std::byte* there = mailbox(peer, rank);
    std::byte* here = mailbox(rank, peer);
    transport::Board* board = transport_.window(peer).board;
    outgoing_.push_back({remote ? MailboxEnd::remote_outgoing(there, here, bytes) : MailboxEnd(there, bytes),
                         board,
                         {},
                         {},
                         false,
                         remote});
    incoming_.push_back({remote ? MailboxEnd::remote_incoming(here, there, bytes) : MailboxEnd(here, bytes),
                         board,
                         {},
                         {},
                         {},
                         false,
                         remote});
  }
}

int Transfers::add(const Transfer& transfer, Batch& batch) {
  int index = static_cast<int>(messages_.size());
  if (unused_.empty()) {
    messages_.emplace_back();
  } else {
    index = unused_.back();
    unused_.pop_back();
  }
  Message& message = at(index);
  message.transfer = transfer;
  message.batch = &batch;
  message.number = ++numbers_;
  message.done = 0;
  message.begun = false;
  message.handed_over = 0;
  return index;
}

void Transfers::append(List& list, int index) {
  at(index).next = kNone;
  (list.first == kNone ? list.first : at(list.last).next) = index;
  list.last = index;
}

/// The one behind `previous`; the first one for kNone.
int Transfers::take_after(List& list, int previous) {
  int& link = previous == kNone ? list.first : at(previous).next;
  const int index = link;
  link = at(index).next;
  if (list.last == index) list.last = previous;
  return index;
}

void Transfers::open_sending(int peer) {
  if (to(peer).open) return;
  to(peer).open = true;
  sending_.push_back(peer);
}

void Transfers::open_receiving(int peer) {
  if (from(peer).open) return;
  from(peer).open = true;
  receiving_.push_back(peer);
}

void Transfers::finish(int index) {
  Batch& batch = *at(index).batch;
  batch.still_since = 0;
  if (--batch.left == 0) ++finished_batches_;
  unused_.push_back(index);
}

// ---- Sending

bool Transfers::reachable_by_peer(const Outgoing& out, Handle handle) const {
  if (out.remote) return false;
  const transport::Capabilities& can = transport_.capabilities();
  return can.any_pointer || can.cross_memory || transport::is_registered(handle);
}

// A remote link that has broken is found out by the next wait.
void Transfers::pass_filled(int peer) {
  Outgoing& out = to(peer);
  out.box.pass(out.box.filled(), *out.board);
  if (!out.remote) return;
  // The slot is not filled again before the receiver has emptied it, so nobody need ask whether it has been read.
  transport::Ticket ticket = 0;
  const std::byte* slot = out.box.last();
  const std::size_t bytes = sizeof(SlotHeader) + reinterpret_cast<const SlotHeader*>(slot)->payload_bytes;
  (void)net_->put(peer, 0, slot, slot, bytes, ticket);
  std::erase_if(unsettled_, [this](transport::Ticket t) { return net_->settled(t); });
  if (ticket != 0) unsettled_.push_back(ticket);
  (void)net_->signal(peer, 0, &out.box.filled(), out.box.passed(), 0, transport::Push::now);
}

bool Transfers::settled() {
  while (!unsettled_.empty() && net_->settled(unsettled_.back())) unsettled_.pop_back();
  return unsettled_.empty() && (net_ == nullptr || net_->idle());
}

void Transfers::pass_emptied(int peer) {
  Incoming& in = from(peer);
  in.box.pass(in.box.emptied(), *in.board);
  if (in.remote) (void)net_->signal(peer, 0, &in.box.emptied(), in.box.passed(), 0, transport::Push::now);
}

bool Transfers::send_at_once(const Transfer& t) {
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
    const Sent sent = send_more(peer, at(out.waiting.first));
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

Transfers::Sent Transfers::send_more(int peer, Message& message) {
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

// ---- Receiving

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

void Transfers::deliver(int index, int peer) {
  if (int* source = at(index).transfer.source; source != nullptr) *source = peer;
  finish(index);
}

bool Transfers::receive(int peer) {
  Incoming& in = from(peer);
  bool moved = false;
  while (in.box.filled().load(std::memory_order_acquire) != in.box.passed()) {
    SlotHeader& header = in.box.next();
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

Transfers::Place Transfers::first_of(const List& list, std::int32_t tag) const {
  Place found;
  for (found.index = list.first; found.index != kNone; found.index = at(found.index).next) {
    if (at(found.index).transfer.tag == tag) break;
    found.previous = found.index;
  }
  return found;
}

int Transfers::match(int peer, std::int32_t tag) {
  Incoming& in = from(peer);
  const Place posted = first_of(in.posted, tag);
  const Place any = first_of(any_, tag);
  const bool take_any = any.index != kNone && (posted.index == kNone || at(any.index).number < at(posted.index).number);
  if (take_any) return take_after(any_, any.previous);
  return posted.index == kNone ? kNone : take_after(in.posted, posted.previous);
}

bool Transfers::begin_arrival(int peer, SlotHeader& header) {
  Incoming& in = from(peer);
  const int index = match(peer, header.tag);
  if (index != kNone) {
    const Transfer& receive = at(index).transfer;
    if (!fits(header.message_count, header.type, receive)) {
      failure_ = mismatch(peer, header.message_count, header.type, receive);
      return false;
    }
    in.arrival = {index, false, static_cast<std::byte*>(receive.buffer), header.message_bytes, 0};
    open_receiving(peer);
    return true;
  }
  const bool in_the_way = in.posted.first != kNone || any_.first != kNone;
  return in_the_way && keep(in, header);
}

bool Transfers::empty_slot(int peer, SlotHeader& header) {
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
        failure_ = waiter_.unreachable(peer, read, text(peer));
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

// ---- All of them

template <class Move, class Ends>
bool Transfers::advance(std::vector<int>& peers, std::vector<Ends>& ends, Move&& move) {
  bool moved = false;
  for (std::size_t i = 0; i < peers.size();) {
    Ends& end = ends[static_cast<std::size_t>(peers[i])];
    moved = move(peers[i]) || moved;
    end.open = end.busy();
    if (end.open) {
      ++i;
    } else {
      peers[i] = peers.back();
      peers.pop_back();
    }
  }
  return moved;
}

bool Transfers::advance() {
  bool moved = advance(sending_, outgoing_, [this](int peer) { return send(peer); });
  const bool all = any_.first != kNone;
  for (int i = 0, first = turn_; all && i < ranks_; ++i) moved = receive((first + i) % ranks_) || moved;
  moved = advance(receiving_, incoming_, [&](int peer) { return !all && receive(peer); }) || moved;
  return moved || idle() || !failure_.ok();
}

Status Transfers::run(std::span<const Transfer> transfers) {
  Batch batch;
  Status status = start(transfers, batch);
  while (status.ok() && (batch.left > 0 || !settled())) status = progress();
  if (!status.ok()) drop();
  return status;
}

Status Transfers::start(std::span<const Transfer> transfers, Batch& batch) {
  for (const Transfer& transfer : transfers) {
    if (transfer.sending && send_at_once(transfer)) continue;
    ++batch.left;
    const int index = add(transfer, batch);
    if (!transfer.sending) {
      post(index);
      continue;
    }
    append(to(transfer.peer).waiting, index);
    open_sending(transfer.peer);
  }
  return failure_;
}

Status Transfers::poll() {
  advance();
  return failure_;
}

Status Transfers::progress(const std::atomic<bool>* news) {
  const std::uint64_t finished = finished_batches_;
  const auto has_news = [news] { return news != nullptr && news->load(std::memory_order_acquire); };
  const auto something_moves = [&] { return has_news() || advance(); };
  something_moves();
  while (failure_.ok() && finished_batches_ == finished && !idle() && !has_news()) {
    if (++turns_ % kTurnsPerLook == 0) TUTTI_TRY(look());
    // Whoever waits for one thing alone sleeps on the counter that the other side raises.
    Word* word = nullptr;
    if (news == nullptr && any_.first == kNone && sending_.size() + receiving_.size() == 1) {
      word = receiving_.empty() ? &to(sending_.front()).box.emptied() : &from(receiving_.front()).box.filled();
    }
    waiter_.set_transfers(this);
    const Status waited = waiter_.until(something_moves, kAnySource, word);
    waiter_.set_transfers(nullptr);
    TUTTI_TRY(waited);
  }
  if (!idle() || !failure_.ok()) return failure_;
  const auto may_end = [&] { return has_news() || settled(); };
  return may_end() ? Status() : waiter_.until(may_end, rank_);
}

}  // namespace tutti::executor
