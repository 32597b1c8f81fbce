#include "collectives/executor/host/transfers.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace tutti::executor {

namespace {

constexpr std::uint64_t kLookEvery = 256;  // turns in which something has moved

}  // namespace

Transfers::Transfers(transport::Transport& transport, Waiter& waiter, Health& health, int rank,
                     std::size_t streaming_above, std::size_t room)
    : transport_(transport),
      waiter_(waiter),
      health_(health),
      rank_(rank),
      ranks_(transport.sizes().ranks),
      streaming_above_(streaming_above),
      room_(room) {
  const std::size_t bytes = transport.sizes().mailbox;
  const auto mailbox = [&](int receiver, int sender) {
    return MailboxEnd(transport_.window(receiver).mailboxes + static_cast<std::size_t>(sender) * bytes, bytes);
  };
  outgoing_.reserve(static_cast<std::size_t>(ranks_));
  incoming_.reserve(static_cast<std::size_t>(ranks_));
  for (int peer = 0; peer < ranks_; ++peer) {
    outgoing_.push_back({mailbox(peer, rank), transport_.window(peer).board, {}, {}, false});
    incoming_.push_back({mailbox(rank, peer), transport_.window(peer).board, {}, {}, {}, false});
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
  (at(index).transfer.sending ? some_sent_ : some_received_) = true;
  unused_.push_back(index);
}

Status Transfers::run(std::span<const Transfer> transfers) {
  Batch batch;
  Status status = start(transfers, batch);
  while (status.ok() && batch.left > 0) status = progress();
  if (!status.ok()) drop();
  return status;
}

Status Transfers::start(std::span<const Transfer> transfers, Batch& batch) {
  batch.left = transfers.size();
  for (const Transfer& transfer : transfers) {
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

bool Transfers::advance() {
  bool moved = false;
  for (const int peer : sending_) moved = send(peer) || moved;
  if (any_.first != kNone) {
    const int first = turn_;
    for (int i = 0; i < ranks_; ++i) moved = receive((first + i) % ranks_) || moved;
  } else {
    for (const int peer : receiving_) moved = receive(peer) || moved;
  }
  if (std::exchange(some_sent_, false)) {
    std::erase_if(sending_, [this](int peer) {
      Outgoing& out = to(peer);
      out.open = out.waiting.first != kNone || out.handed_over.first != kNone;
      return !out.open;
    });
  }
  if (std::exchange(some_received_, false)) {
    std::erase_if(receiving_, [this](int peer) {
      Incoming& in = from(peer);
      in.open = in.posted.first != kNone || in.arrival.message != kNone;
      return !in.open;
    });
  }
  return moved || idle() || !failure_.ok();
}

Status Transfers::poll() {
  advance();
  return failure_;
}

Status Transfers::look() {
  if (health_.failed()) return health_.status();
  const auto late = overdue(now_ns(), waiter_.timeout_ns());
  return late ? waiter_.overdue(*late) : Status();
}

Status Transfers::progress(const std::atomic<bool>* news) {
  const std::uint64_t finished = finished_batches_;
  const auto has_news = [news] { return news != nullptr && news->load(std::memory_order_acquire); };
  const auto something_moves = [&] { return has_news() || advance(); };
  something_moves();
  while (failure_.ok() && finished_batches_ == finished && !idle() && !has_news()) {
    if (++turns_ % kLookEvery == 0) TUTTI_TRY(look());
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
  return failure_;
}

void Transfers::drop() {
  for (const int peer : sending_) {
    for (int i = to(peer).handed_over.first; i != kNone; i = at(i).next) withdraw(to(peer), at(i));
    to(peer).waiting = to(peer).handed_over = {};
    to(peer).open = false;
  }
  for (const int peer : receiving_) {
    from(peer).posted = {};
    from(peer).arrival = {};
    from(peer).open = false;
  }
  sending_.clear();
  receiving_.clear();
  any_ = {};
  messages_.clear();
  unused_.clear();
}

// ---- What the waiter asks

template <class Visit>
void Transfers::each_pending(Visit&& visit) const {
  const auto all = [&](const List& list) {
    for (int i = list.first; i != kNone; i = at(i).next) visit(at(i));
  };
  for (const int peer : sending_) {
    const Outgoing& out = outgoing_[static_cast<std::size_t>(peer)];
    all(out.handed_over);
    all(out.waiting);
  }
  for (const int peer : receiving_) {
    const Incoming& in = incoming_[static_cast<std::size_t>(peer)];
    if (in.arrival.message != kNone) visit(at(in.arrival.message));
    all(in.posted);
  }
  all(any_);
}

bool Transfers::needs(int rank) const {
  const auto r = static_cast<std::size_t>(rank);
  return outgoing_[r].open || incoming_[r].open;
}

std::string Transfers::text(int rank) const {
  const Message* oldest = nullptr;
  bool concerned = false;
  each_pending([&](const Message& message) {
    const int peer = message.transfer.peer;
    const bool concerns = rank < 0 || peer == rank || peer == kAnySource;
    if (concerned && !concerns) return;
    if (oldest != nullptr && concerns == concerned && oldest->number < message.number) return;
    oldest = &message;
    concerned = concerns;
  });
  return oldest == nullptr ? "no send and no receive" : describe(*oldest);
}

std::optional<PendingTransfers::Overdue> Transfers::overdue(std::int64_t now_ns, std::int64_t limit_ns) {
  const Message* late = nullptr;
  each_pending([&](const Message& message) {
    Batch& batch = *message.batch;
    if (batch.still_since == 0) batch.still_since = now_ns;
    if (now_ns - batch.still_since <= limit_ns) return;
    if (late == nullptr || message.number < late->number) late = &message;
  });
  if (late == nullptr) return std::nullopt;
  Overdue found{late->transfer.peer, std::vector<bool>(static_cast<std::size_t>(ranks_)), describe(*late)};
  each_pending([&](const Message& message) {
    if (message.batch != late->batch) return;
    const int peer = message.transfer.peer;
    if (peer == kAnySource) found.ranks.assign(found.ranks.size(), true);
    if (peer != kAnySource) found.ranks[static_cast<std::size_t>(peer)] = true;
  });
  return found;
}

std::string Transfers::describe(const Message& message) const {
  const Transfer& t = message.transfer;
  const std::string tag = t.tag == 0 ? "" : fmt::format(", tag {}", t.tag);
  std::string text = fmt::format("{}({} x {}{}) {} {}", t.sending ? "send" : "recv", t.count, name_of(t.type), tag,
                                 t.sending ? "to" : "from", t.peer == kAnySource ? "any rank" : waiter_.name()(t.peer));
  if (t.sending || t.peer == kAnySource) return text;
  const Incoming& in = incoming_[static_cast<std::size_t>(t.peer)];
  if (in.arrival.active() || in.box.filled().load(std::memory_order_acquire) == in.box.passed()) return text;
  const SlotHeader header = in.box.next().copy();
  if (has_room(header.message_bytes)) return text;
  return text + fmt::format(
                    ", before which lies one of tag {} that nobody receives; memory_limit leaves no room for its "
                    "{} bytes",
                    header.tag, header.message_bytes);
}

}  // namespace tutti::executor
