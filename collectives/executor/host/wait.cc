#include "collectives/executor/host/wait.h"

#include <fmt/format.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

#include "collectives/executor/host/record.h"

namespace tutti::executor {

using transport::Board;
using transport::CallRecord;
using transport::kCallRing;

namespace {

constexpr std::int64_t kLookEveryNs = 1'000'000;     // at the peers' boards
constexpr std::int64_t kYieldForNs = 2'000'000;      // before sleeping
constexpr std::int64_t kSleepNs = 1'000'000;         // bounds what a missed wake-up costs
constexpr std::int64_t kPulseWatchNs = 100'000'000;  // a rank that polls beats far more often than this

// The low half of the counter is what a futex can sleep on.
std::uint32_t* futex_word(transport::SignalCell& cell) { return reinterpret_cast<std::uint32_t*>(&cell.count); }

void sleep_on(transport::SignalCell* cell) {
  const timespec limit{0, kSleepNs};
  if (cell == nullptr) {
    nanosleep(&limit, nullptr);
    return;
  }
  const auto seen = static_cast<std::uint32_t>(cell->count.load(std::memory_order_acquire));
  cell->sleeping.store(1, std::memory_order_relaxed);
  syscall(SYS_futex, futex_word(*cell), FUTEX_WAIT, seen, &limit, nullptr, 0);
  cell->sleeping.store(0, std::memory_order_relaxed);
}

}  // namespace

void wake(transport::SignalCell& cell) { syscall(SYS_futex, futex_word(cell), FUTEX_WAKE, 1, nullptr, nullptr, 0); }

Waiter::Waiter(transport::Transport& transport, Health& health, int rank, RankName name, WaitOptions options)
    : transport_(transport),
      health_(health),
      rank_(rank),
      ranks_(transport.sizes().ranks),
      name_(std::move(name)),
      options_(options),
      quick_spins_(options.crowded ? 20 : 2000) {}

Status Waiter::pause(Patience& patience, int peer, transport::SignalCell* cell) {
  if (health_.failed()) return health_.status();
  const std::int64_t now = now_ns();
  if (patience.since == 0) patience.since = patience.last_look = now;
  transport_.window(rank_).board->pulse.beats.fetch_add(1, std::memory_order_relaxed);
  const std::int64_t waited = now - patience.since;
  if (now - patience.last_look > kLookEveryNs) {
    patience.last_look = now;
    TUTTI_TRY(look_around(peer));
    if (waited > options_.timeout.count()) return deadline_passed(peer);
  }
  const std::int64_t spin = options_.crowded ? 0 : options_.spin.count();
  if (waited < spin) {
    for (int i = 0; i < 50; ++i) cpu_relax();
  } else if (waited < spin + kYieldForNs) {
    sched_yield();
  } else {
    sleep_on(cell);
  }
  return {};
}

bool Waiter::has_entered(int rank, std::uint64_t sequence) const {
  const Board* board = transport_.window(rank).board;
  return board == nullptr || board->calls[sequence % kCallRing].sequence.load(std::memory_order_acquire) >= sequence;
}

Status Waiter::look_around(int peer) {
  if (sequence_ != 0) TUTTI_TRY(mismatch(sequence_));
  for (int rank = 0; rank < ranks_; ++rank) {
    const Board* board = transport_.window(rank).board;
    if (rank == rank_) continue;
    if (!transport_.alive(rank)) {
      return health_.fail(Code::peer_died,
                          fmt::format("{} died while {} was in {}", name_(rank), name_(rank_), activity()));
    }
    if (board == nullptr || board->pulse.departed.load(std::memory_order_acquire) == 0) continue;
    if (sequence_ != 0 ? !has_entered(rank, sequence_) : rank == peer) {
      return health_.fail(Code::mismatch, fmt::format("{} has closed its communicator, and {} is in {}", name_(rank),
                                                      name_(rank_), activity()));
    }
  }
  return {};
}

Status Waiter::check_peer(int peer, std::uint64_t sequence) {
  const CallRecord& mine = transport_.window(rank_).board->calls[sequence % kCallRing];
  const CallRecord& theirs = transport_.window(peer).board->calls[sequence % kCallRing];
  const std::uint64_t seen = theirs.sequence.load(std::memory_order_acquire);
  if (seen == sequence) {
    const std::uint64_t fingerprint = theirs.fingerprint.load(std::memory_order_relaxed);
    if (fingerprint == mine.fingerprint.load(std::memory_order_relaxed)) return {};
    return mismatch(sequence);
  }
  // It signalled without having entered this call: it signalled more often in an earlier one than it should have.
  for (std::uint64_t earlier = sequence - 1; earlier + 8 > sequence && earlier > 0; --earlier) {
    TUTTI_TRY(mismatch(earlier));
  }
  return health_.fail(Code::mismatch,
                      fmt::format("{} and {} are not in step: {} calls {} and got a signal of an earlier call of {}",
                                  name_(rank_), name_(peer), name_(rank_), call_text(rank_, sequence), name_(peer)));
}

// The sentence must not depend on who finds out: it compares the lowest rank that has entered with the first that
// differs.
Status Waiter::mismatch(std::uint64_t sequence) {
  int first = -1;
  std::uint64_t fingerprint = 0;
  for (int rank = 0; rank < ranks_; ++rank) {
    const Board* board = transport_.window(rank).board;
    if (board == nullptr) continue;
    const CallRecord& record = board->calls[sequence % kCallRing];
    if (record.sequence.load(std::memory_order_acquire) != sequence) continue;
    const std::uint64_t theirs = record.fingerprint.load(std::memory_order_relaxed);
    if (record.sequence.load(std::memory_order_acquire) != sequence) continue;  // overwritten meanwhile
    if (first < 0) {
      first = rank;
      fingerprint = theirs;
    } else if (theirs != fingerprint) {
      return health_.fail(Code::mismatch,
                          fmt::format("{} called {}, {} called {}", name_(first), call_text(first, sequence),
                                      name_(rank), call_text(rank, sequence)));
    }
  }
  return {};
}

Status Waiter::deadline_passed(int peer) {
  const std::string waiting = fmt::format("{} waited {:.1f} s in {}", name_(rank_),
                                          std::chrono::duration<double>(options_.timeout).count(), activity());
  if (sequence_ != 0) {
    std::string absent;
    for (int rank = 0; rank < ranks_; ++rank) {
      if (!has_entered(rank, sequence_)) absent += (absent.empty() ? "" : ", ") + name_(rank);
    }
    if (!absent.empty()) return health_.fail(Code::timeout, fmt::format("{} has not entered it; {}", absent, waiting));
  }
  // All are inside: whoever does not even poll is the one that stands still.
  std::vector<std::uint64_t> before(static_cast<std::size_t>(ranks_));
  for (int rank = 0; rank < ranks_; ++rank) {
    const Board* board = transport_.window(rank).board;
    if (board != nullptr) before[static_cast<std::size_t>(rank)] = board->pulse.beats.load(std::memory_order_relaxed);
  }
  for (const std::int64_t since = now_ns(); now_ns() - since < kPulseWatchNs;) {
    if (health_.failed()) return health_.status();
    transport_.window(rank_).board->pulse.beats.fetch_add(1, std::memory_order_relaxed);
    sleep_on(nullptr);
  }
  for (int rank = 0; rank < ranks_; ++rank) {
    const Board* board = transport_.window(rank).board;
    if (rank == rank_ || board == nullptr) continue;
    if (board->pulse.beats.load(std::memory_order_relaxed) == before[static_cast<std::size_t>(rank)]) {
      return health_.fail(Code::timeout, fmt::format("{} stands still inside it; {}", name_(rank), waiting));
    }
  }
  return health_.fail(Code::timeout, fmt::format("{} has not answered; {}", name_(peer), waiting));
}

std::string Waiter::activity() const {
  if (sequence_ != 0) return call_text(rank_, sequence_);
  return describe_ ? describe_() : std::string("no call");
}

std::string Waiter::call_text(int rank, std::uint64_t sequence) const {
  const CallSnapshot call = snapshot(transport_.window(rank).board->calls[sequence % kCallRing]);
  return fmt::format("{} as its call {}", call.text(), sequence);
}

}  // namespace tutti::executor
