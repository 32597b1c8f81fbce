#include "collectives/executor/p2p/transfers.h"

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <vector>

#include "base/clock.h"

namespace tutti::executor {

namespace {

constexpr std::uint64_t kMovesPerLook = 256;  // of which each has moved something

}  // namespace

Transfers::Transfers(transport::Transport& transport, Waiter& waiter, Health& health, int rank,
                     std::size_t streaming_above, std::size_t room)
    : waiter_(waiter),
      health_(health),
      rank_(rank),
      ranks_(transport.sizes().ranks),
      sends_(transport, pool_, rank),
      receives_(transport, waiter, health, pool_, *this, rank, streaming_above, room) {}

bool Transfers::advance() {
  bool moved = sends_.advance();
  moved = receives_.advance() || moved;
  return moved || idle() || !receives_.failure().ok();
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
    if (transfer.sending && sends_.send_at_once(transfer)) continue;
    ++batch.left;
    const int index = pool_.add(transfer, batch);
    if (transfer.sending) {
      sends_.start(index);
    } else {
      receives_.start(index);
    }
  }
  return receives_.failure();
}

Status Transfers::poll() {
  advance();
  return receives_.failure();
}

Status Transfers::progress(const std::atomic<bool>* news) {
  const std::uint64_t finished = pool_.finished_batches();
  const auto has_news = [news] { return news != nullptr && news->load(std::memory_order_acquire); };
  const auto something_moves = [&] { return has_news() || advance(); };
  something_moves();
  while (receives_.failure().ok() && pool_.finished_batches() == finished && !idle() && !has_news()) {
    if (++moves_ % kMovesPerLook == 0) TUTTI_TRY(look());
    // A rank that waits for one thing alone sleeps on the counter that the other side raises.
    Word* word = nullptr;
    if (news == nullptr && !receives_.needs_anyone() && sends_.peers().size() + receives_.peers().size() == 1) {
      word =
          receives_.peers().empty() ? &sends_.word(sends_.peers().front()) : &receives_.word(receives_.peers().front());
    }
    waiter_.set_transfers(this);
    const Status waited = waiter_.until(something_moves, kAnySource, word);
    waiter_.set_transfers(nullptr);
    TUTTI_TRY(waited);
  }
  if (!idle() || !receives_.failure().ok()) return receives_.failure();
  const auto may_end = [&] { return has_news() || settled(); };
  return may_end() ? Status() : waiter_.until(may_end, rank_);
}

Status Transfers::look() {
  if (health_.failed()) return health_.status();
  const auto late = overdue(now_ns(), waiter_.timeout_ns());
  return late ? waiter_.overdue(*late) : Status();
}

void Transfers::drop() {
  sends_.drop();
  receives_.drop();
  pool_.clear();
}

// ---- What the waiter asks

template <class Visit>
void Transfers::each_pending(Visit&& visit) const {
  sends_.each_pending(visit);
  receives_.each_pending(visit);
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
  const std::string text =
      fmt::format("{}({} x {}{}) {} {}", t.sending ? "send" : "recv", t.count, name_of(t.type), tag,
                  t.sending ? "to" : "from", t.peer == kAnySource ? "any rank" : waiter_.name()(t.peer));
  return t.sending || t.peer == kAnySource ? text : text + receives_.obstacle(t.peer);
}

}  // namespace tutti::executor
