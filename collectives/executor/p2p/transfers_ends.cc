// How sends and receives end that do not end well: what is told of them, and what is taken back.

#include <fmt/format.h>
#include <sched.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "collectives/executor/p2p/transfers.h"

namespace tutti::executor {

namespace {

constexpr std::int64_t kWithdrawNs = 500'000'000;  // for a receiver that is just reading

}  // namespace

Status Transfers::look() {
  if (health_.failed()) return health_.status();
  const auto late = overdue(now_ns(), waiter_.timeout_ns());
  return late ? waiter_.overdue(*late) : Status();
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

void Transfers::withdraw(const Outgoing& out, const Message& message) {
  if (out.box.slot(message.handed_over - 1).take() != SlotHeader::kTaken) return;
  const std::int64_t since = now_ns();
  while (out.box.emptied().load(std::memory_order_acquire) < message.handed_over &&
         transport_.alive(message.transfer.peer) && now_ns() - since < kWithdrawNs) {
    sched_yield();
  }
}

Status Transfers::mismatch(int peer, std::uint64_t count, std::uint8_t type, const Transfer& receive) const {
  const std::string with_tag = receive.tag == 0 ? "" : fmt::format(" with tag {}", receive.tag);
  return health_.fail(Code::mismatch,
                      fmt::format("{} sends {} x {} to {}{}, which receives {} x {}", waiter_.name()(peer), count,
                                  name_of(static_cast<DataType>(type)), waiter_.name()(rank_), with_tag, receive.count,
                                  name_of(receive.type)));
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
  const SlotHeader& header = in.box.next();
  if (has_room(header.message_bytes)) return text;
  return text + fmt::format(
                    ", before which lies one of tag {} that nobody receives; memory_limit leaves no room for its "
                    "{} bytes",
                    header.tag, header.message_bytes);
}

}  // namespace tutti::executor
