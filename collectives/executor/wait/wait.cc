#include "collectives/executor/wait/wait.h"

#include <fmt/format.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <utility>

namespace tutti::executor {

namespace {

constexpr std::int64_t kLookEveryNs = 1'000'000;  // at the peers' boards
constexpr std::int64_t kAskEveryNs = 50'000'000;  // whether it is interrupted
constexpr std::int64_t kYieldForNs = 2'000'000;   // before sleeping
constexpr std::int64_t kSleepNs = 1'000'000;      // bounds what a missed wake-up costs
constexpr std::int64_t kPartNs = 500'000'000;     // for what a peer is doing with this rank's buffers
constexpr std::int64_t kHoldBackNs = 100'000;     // what may go with a later message
constexpr std::int64_t kSharedCoreNs = 700;       // more than a mere call of the kernel: another had the core

// The low half of a counter or a tag is what a futex can sleep on. It repeats itself after 2^32 signals, and a sender
// is never more than a few calls ahead.
static_assert(std::endian::native == std::endian::little);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
std::uint32_t* futex_word(Word& word) { return reinterpret_cast<std::uint32_t*>(&word); }
std::uint32_t low_half(const Word& word) { return static_cast<std::uint32_t>(word.load(std::memory_order_acquire)); }

void futex_wait(std::uint32_t* word, std::uint32_t seen) {
  const timespec limit{0, kSleepNs};
  syscall(SYS_futex, word, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

/// A full fence in every running thread of this machine, so that its peers need none in a call that goes well.
void fence_everywhere() { syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0); }

void breathe() {
  const timespec limit{0, kSleepNs};
  nanosleep(&limit, nullptr);
}

}  // namespace

void wake(Word& word) { syscall(SYS_futex, futex_word(word), FUTEX_WAKE, 1, nullptr, nullptr, 0); }

void wake_any(transport::SleepState& sleep) {
  // A rank that is just about to sleep finds another word there, and does not.
  std::uint32_t asleep = transport::kOnAny;
  if (sleep.state.load(std::memory_order_relaxed) != asleep) return;
  if (!sleep.state.compare_exchange_strong(asleep, transport::kAwake)) return;
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&sleep.state), FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

Waiter::Waiter(transport::Transport& transport, Health& health, int rank, RankName name, WaitOptions options)
    : transport_(transport),
      net_(transport.net_links()),
      health_(health),
      options_(std::move(options)),
      progress_(transport, rank),
      diagnosis_(transport, health, progress_, rank, std::move(name), options_.ask, options_.timeout) {
  set_background(false);
}

Status Waiter::pause(WaitState& state, int peer, Word* word) {
  if (health_.failed()) return health_.status();
  const std::int64_t now = now_ns();
  if (state.since == 0) state.since = state.last_look = now;
  progress_.beat();
  const std::int64_t waited = now - state.since;
  if (now - state.last_look > kLookEveryNs) {
    state.last_look = now;
    TUTTI_TRY(diagnosis_.look_around(state.suspicion, peer));
    if (PendingTransfers* transfers = diagnosis_.transfers(); transfers != nullptr) {
      if (const auto late = transfers->overdue(now, timeout_ns())) return diagnosis_.overdue(*late);
    } else if (waited > timeout_ns()) {
      return diagnosis_.deadline_passed(peer);
    }
    if (options_.interrupted && !background_) TUTTI_TRY(ask(state, now, peer));
  }
  const std::int64_t spin = oversubscribed_ ? 0 : options_.spin.count();
  if (net_ != nullptr) {
    if (holds_back_ && !state.has_flushed && waited > kHoldBackNs) {
      state.has_flushed = true;
      (void)net_->flush();
    }
    // What a rank of this host does ends no sleep on the network. For such a peer that sleep comes later.
    const bool is_local = diagnosis_.transfers() == nullptr && peer != rank() && !progress_.is_remote(peer);
    serve_network(now, peer, waited < spin + (is_local ? kYieldForNs : 0) ? std::chrono::nanoseconds(0) : kNetSleep);
  } else if (waited < spin) {
    for (int i = 0; i < 50; ++i) cpu_relax();
  } else if (waited < spin + kYieldForNs) {
    sched_yield();
  } else {
    sleep(state, word);
  }
  if (word != nullptr) state.seen = low_half(*word);
  return {};
}

void Waiter::serve_network(std::int64_t now, int peer, std::chrono::nanoseconds most) {
  progress_.send_pulse(now);
  if (progress_network(peer)) return;
  if (most.count() > 0) {
    net_->sleep(most);
  } else {
    give_way();  // hosts may share cores, as containers do
  }
}

void Waiter::give_way() {
  const std::int64_t before = now_ns();
  sched_yield();
  const std::int64_t yielded = now_ns() - before;
  least_yield_ns_ = std::min(least_yield_ns_, yielded);
  shares_core_ = yielded > least_yield_ns_ + kSharedCoreNs;
}

Status Waiter::ask(WaitState& state, std::int64_t now, int peer) {
  if (state.last_ask == 0) state.last_ask = state.since;
  if (now - state.last_ask < kAskEveryNs) return {};
  state.last_ask = now;
  if (!options_.interrupted()) return {};
  return health_.fail(Code::aborted,
                      fmt::format("{} was interrupted in {}", name()(rank()), diagnosis_.activity(peer)));
}

// On one counter: not at all when it is no longer `seen`, which was read before the condition was last found not to
// hold. On several things: by turns says that it sleeps, so that the condition is looked at once more, and then sleeps
// unless that word has changed. So a signal that came in time is never slept through. What may be missed is a wake-up:
// the sender's look at `sleeping` is not ordered behind its store of the counter. The kernel compares the word again,
// so that both must fall into the few nanoseconds that a store takes to be seen; then the sleep lasts its whole
// millisecond.
void Waiter::sleep(WaitState& state, Word* word) {
  transport::SleepState& sleep = transport_.window(rank()).board->sleep;
  if (word != nullptr) {
    sleep.state.store(transport::kOnCounter, std::memory_order_relaxed);
    futex_wait(futex_word(*word), state.seen);
    sleep.state.store(transport::kAwake, std::memory_order_relaxed);
    return;
  }
  if (!state.armed) {
    sleep.state.store(transport::kOnAny, std::memory_order_seq_cst);
  } else if (sleep.state.load(std::memory_order_relaxed) == transport::kOnAny) {
    futex_wait(reinterpret_cast<std::uint32_t*>(&sleep.state), transport::kOnAny);
  }
  state.armed = !state.armed;
  if (!state.armed) disarm();
}

void Waiter::disarm() {
  transport_.window(rank()).board->sleep.state.store(transport::kAwake, std::memory_order_relaxed);
}

void Waiter::part(std::uint64_t sequence) {
  const std::int64_t since = now_ns();
  // A peer that has not seen that this rank withdraws is seen as being inside. Where the kernel refuses the fence, the
  // pause stands in for it, which is longer than any store stays in a core's buffer.
  fence_everywhere();
  do {
    breathe();
    bool inside = false;
    for (int peer = 0; peer < transport_.sizes().ranks; ++peer) {
      inside = inside || (peer != rank() && !progress_.is_remote(peer) && progress_.is_inside(peer, sequence) &&
                          transport_.alive(peer));
    }
    if (!inside) return;
  } while (now_ns() - since < kPartNs);
}

}  // namespace tutti::executor
