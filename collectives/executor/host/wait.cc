#include "collectives/executor/host/wait.h"

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

#include "collectives/executor/host/net_record.h"
#include "collectives/executor/memory_kind_check.h"
#include "collectives/executor/record.h"

namespace tutti::executor {

using transport::Board;
using transport::CallRecord;
using transport::kCallRing;

namespace {

constexpr std::int64_t kLookEveryNs = 1'000'000;     // at the peers' boards
constexpr std::int64_t kAskEveryNs = 50'000'000;     // whether it is interrupted
constexpr std::int64_t kYieldForNs = 2'000'000;      // before sleeping
constexpr std::int64_t kSleepNs = 1'000'000;         // bounds what a missed wake-up costs
constexpr std::int64_t kPartNs = 500'000'000;        // for what a peer is doing with this rank's buffers
constexpr std::int64_t kPulseWatchNs = 200'000'000;  // a rank that polls beats far more often than this
constexpr std::int64_t kBeatEveryNs = 50'000'000;    // to ranks on other hosts
constexpr std::int64_t kLostNs = 2'000'000'000;      // a link breaks a moment before the meeting place tells of a death
constexpr std::int64_t kAnswerNs = 300'000'000;      // more, for the answer of a rank whose pulse is not seen here
constexpr std::int64_t kHoldBackNs = 100'000;        // what may go with a later message
constexpr std::int64_t kTurnNs = 700;                // more than a mere call of the kernel: another had the core
constexpr std::chrono::microseconds kNetSleep{500};  // nothing but the network ends it

// Where a rank stands, as a word: the number of its latest call times kCall, and these.
constexpr std::uint64_t kPolls = 1;   // it has done so lately
constexpr std::uint64_t kInside = 2;  // it is in that call
constexpr std::uint64_t kCall = 4;

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

void wake_any(transport::Doze& doze) {
  // Whoever is just about to sleep finds another word there, and does not.
  std::uint32_t asleep = transport::kOnDoze;
  if (doze.sleeping.load(std::memory_order_relaxed) != asleep) return;
  if (!doze.sleeping.compare_exchange_strong(asleep, transport::kAwake)) return;
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&doze.sleeping), FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

Waiter::Waiter(transport::Transport& transport, Health& health, int rank, RankName name, WaitOptions options)
    : transport_(transport),
      net_(transport.far_links()),
      health_(health),
      rank_(rank),
      ranks_(transport.sizes().ranks),
      name_(std::move(name)),
      options_(std::move(options)),
      timeout_ns_(options_.timeout.count()),
      answers_(static_cast<std::size_t>(ranks_)) {
  for (auto& answer : answers_) answer.store(kNoAnswer, std::memory_order_relaxed);
  set_background(false);
}

Status Waiter::pause(WaitState& state, int peer, Word* word) {
  if (health_.failed()) return health_.status();
  const std::int64_t now = now_ns();
  if (state.since == 0) state.since = state.last_look = now;
  transport_.window(rank_).board->pulse.beats.fetch_add(1, std::memory_order_relaxed);
  const std::int64_t waited = now - state.since;
  if (now - state.last_look > kLookEveryNs) {
    state.last_look = now;
    TUTTI_TRY(look_around(state, peer));
    if (transfers_ != nullptr) {
      if (const auto late = transfers_->overdue(now, timeout_ns())) return overdue(*late);
    } else if (waited > timeout_ns()) {
      return deadline_passed(peer);
    }
    if (options_.interrupted && !background_) TUTTI_TRY(ask(state, now, peer));
  }
  const std::int64_t spin = oversubscribed_ ? 0 : options_.spin.count();
  if (net_ != nullptr) {
    if (holds_back_ && !state.has_posted && waited > kHoldBackNs) {
      state.has_posted = true;
      (void)net_->post();
    }
    // What a rank of this host does ends no doze on the network: then that comes later.
    const bool is_local = transfers_ == nullptr && peer != rank_ && !is_remote(peer);
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
  if (now - last_beat_ns_.load(std::memory_order_relaxed) > kBeatEveryNs) {
    last_beat_ns_.store(now, std::memory_order_relaxed);
    const std::uint64_t beats = transport_.window(rank_).board->pulse.beats.load(std::memory_order_relaxed);
    for (int rank = 0; rank < ranks_; ++rank) {
      // Where no meeting place tells of deaths, a link that breaks does.
      if (net_->far(rank) && (net_->has_written_to(rank) || !net_->hears_of_deaths())) {
        (void)net_->signal(rank, 0, &net_->mirror_at(rank).pulse, beats, 0, transport::Push::now);
      }
    }
  }
  if (move_remote(peer)) return;
  if (most.count() > 0) {
    net_->doze(most);
  } else {
    give_way();  // hosts may share cores, as containers do
  }
}

void Waiter::give_way() {
  const std::int64_t before = now_ns();
  sched_yield();
  const std::int64_t turn = now_ns() - before;
  least_turn_ns_ = std::min(least_turn_ns_, turn);
  shares_core_ = turn > least_turn_ns_ + kTurnNs;
}

Status Waiter::ask(WaitState& state, std::int64_t now, int peer) {
  if (state.last_ask == 0) state.last_ask = state.since;
  if (now - state.last_ask < kAskEveryNs) return {};
  state.last_ask = now;
  if (!options_.interrupted()) return {};
  return health_.fail(Code::aborted, fmt::format("{} was interrupted in {}", name_(rank_), activity(peer)));
}

// On one counter: not at all when it is no longer `seen`, which was read before the condition was last found not to
// hold. On several things: by turns says that it sleeps, so that the condition is looked at once more, and then sleeps
// unless somebody has changed that word. So a signal that came in time is never slept through. What may be missed is a
// wake-up: the sender's look at `sleeping` is not ordered behind its store of the counter. The kernel compares the word
// again, so that both must fall into the few nanoseconds that a store takes to be seen; then the sleep lasts its whole
// millisecond.
void Waiter::sleep(WaitState& state, Word* word) {
  transport::Doze& doze = transport_.window(rank_).board->doze;
  if (word != nullptr) {
    doze.sleeping.store(transport::kOnCounter, std::memory_order_relaxed);
    futex_wait(futex_word(*word), state.seen);
    doze.sleeping.store(transport::kAwake, std::memory_order_relaxed);
    return;
  }
  if (!state.armed) {
    doze.sleeping.store(transport::kOnDoze, std::memory_order_seq_cst);
  } else if (doze.sleeping.load(std::memory_order_relaxed) == transport::kOnDoze) {
    futex_wait(reinterpret_cast<std::uint32_t*>(&doze.sleeping), transport::kOnDoze);
  }
  state.armed = !state.armed;
  if (!state.armed) disarm();
}

void Waiter::disarm() {
  transport_.window(rank_).board->doze.sleeping.store(transport::kAwake, std::memory_order_relaxed);
}

std::uint64_t Waiter::standing() const {
  std::uint64_t latest = 0;
  bool inside = false;
  for (const CallRecord& record : transport_.window(rank_).board->calls) {
    const std::uint64_t sequence = record.sequence.load(std::memory_order_acquire);
    if (sequence <= latest) continue;
    latest = sequence;
    inside = record.state.load(std::memory_order_acquire) == transport::CallState::entered;
  }
  const bool polls = now_ns() - last_beat_ns_.load(std::memory_order_relaxed) < kPulseWatchNs;
  return kCall * latest + (inside ? kInside : 0) + (polls ? kPolls : 0);
}

transport::ExpressCell& Waiter::cell_from(int rank, std::uint64_t call) const {
  return transport_.sizes().express_cell(transport_.window(rank_).express, rank, call);
}

CallRecord* Waiter::record_of(int rank, std::uint64_t call) const {
  Board* board = transport_.window(rank).board;
  if (board == nullptr) return nullptr;
  CallRecord& record = board->calls[call % kCallRing];
  if (is_remote(rank)) copy_to_mirror(cell_from(rank, call), call, record);
  return &record;
}

bool Waiter::has_announced(int rank, std::uint64_t call) const {
  const CallRecord& record = *record_of(rank, call);
  return record.sequence.load(std::memory_order_acquire) >= call && is_whole(record);
}

bool Waiter::has_entered(int rank, std::uint64_t sequence) const {
  const std::uint64_t answer = answers_[static_cast<std::size_t>(rank)].load(std::memory_order_acquire);
  if (answer != kNoAnswer) return answer / kCall >= sequence;
  const CallRecord* record = record_of(rank, sequence);
  return record == nullptr || record->sequence.load(std::memory_order_acquire) >= sequence;
}

bool Waiter::is_inside(int rank, std::uint64_t sequence) const {
  const std::uint64_t answer = answers_[static_cast<std::size_t>(rank)].load(std::memory_order_acquire);
  if (answer != kNoAnswer) return answer / kCall == sequence && (answer & kInside) != 0;
  const CallRecord* record = record_of(rank, sequence);
  return record != nullptr && record->sequence.load(std::memory_order_acquire) == sequence &&
         record->state.load(std::memory_order_acquire) == transport::CallState::entered;
}

// A rank that has closed its communicator did its part in every call that it entered, and may end when it likes: that
// is no death. Whether it is alive must be read first: it closes, then ends.
Status Waiter::look_around(WaitState& state, int peer) {
  if (sequence_ != 0) TUTTI_TRY(mismatch(sequence_));
  if (sequence_ != 0) TUTTI_TRY(mixed_kinds());
  TUTTI_TRY(remote_failure());
  int gone = -1;  // whom this rank waits for all the same
  int open = 0;   // others that have not closed theirs
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank == rank_) continue;
    const bool alive = transport_.alive(rank);
    if (!has_closed(rank)) {
      ++open;
      if (!alive) return health_.fail(Code::peer_died, death_text(rank));
      if (!is_remote(rank)) continue;
      const Status broken = net_->broken(rank);
      if (broken.ok()) continue;
      if (broken.code() == Code::system) return unreachable(rank, broken);  // of this process, and no death
      if (state.lost == 0) state.lost = now_ns();
      if (now_ns() - state.lost > kLostNs) return unreachable(rank, broken);
      continue;
    }
    // A remote rank tells of a call to its neighbours only, so of another one nobody knows whether it did its part.
    if (transfers_ == nullptr && is_remote(rank) && rank != peer) continue;
    const bool needed = transfers_ == nullptr ? !has_entered(rank, sequence_) : transfers_->needs(rank);
    if (needed && gone < 0) gone = rank;
  }
  if (gone < 0 && transfers_ != nullptr && open == 0 && transfers_->needs_anyone()) gone = ranks_;
  if (gone < 0) return {};
  // Its last message may have come after holds() looked for it: let that look once more.
  if (transfers_ != nullptr && state.departed_peer != gone) {
    state.departed_peer = gone;
    return {};
  }
  if (gone == ranks_) {
    return health_.fail(Code::mismatch, fmt::format("all other ranks have closed their communicators, and {} is in {}",
                                                    name_(rank_), activity(-1)));
  }
  return health_.fail(Code::mismatch, fmt::format("{} has closed its communicator, and {} is in {}", name_(gone),
                                                  name_(rank_), activity(gone)));
}

Status Waiter::remote_failure() {
  for (int rank = 0; rank < ranks_; ++rank) {
    if (!is_remote(rank)) continue;
    const Status told = Health::told_on(*transport_.window(rank).board);
    if (told.ok()) continue;
    health_.fail_quietly(told.code(), told.message());
    return health_.status();
  }
  return {};
}

Status Waiter::unreachable(int peer, const Status& why) { return unreachable(peer, why, activity(peer)); }

Status Waiter::unreachable(int peer, const Status& why, const std::string& activity) {
  const bool is_silent = why.code() == Code::peer_died;
  if (is_silent && !is_remote(peer)) return health_.fail(Code::peer_died, death_text(peer));
  if (is_silent && !net_->hears_of_deaths()) {
    return health_.fail(Code::peer_died, fmt::format("{}, or is cut off: {}", death_text(peer), why.message()));
  }
  // A remote process whose link is broken may well live; if not, the meeting place would have told.
  return health_.fail(is_silent ? Code::system : why.code(),
                      fmt::format("{} in {} with {}: {}", name_(rank_), activity, name_(peer), why.message()));
}

Status Waiter::lost(int peer, const Status& why) {
  for (const std::int64_t since = now_ns(); now_ns() - since < kLostNs && !health_.failed();) {
    if (!transport_.alive(peer)) return health_.fail(Code::peer_died, death_text(peer));
    TUTTI_TRY(remote_failure());
    // Whoever has closed its communicator did its part, and wants nothing any more.
    if (transport_.window(peer).board->pulse.departed.load(std::memory_order_acquire) != 0) return {};
    if (!net_->progress()) breathe();
  }
  return health_.failed() ? health_.status() : unreachable(peer, why);
}

std::string Waiter::death_text(int rank) const {
  const Board* board = transport_.window(rank).board;
  for (std::uint64_t i = 0; is_remote(rank) && i < transport_.sizes().express_calls(); ++i) {
    (void)record_of(rank, net_record(cell_from(rank, i)).sequence.load(std::memory_order_acquire));
  }
  CallSnapshot last;
  for (int i = 0; board != nullptr && i < kCallRing; ++i) {
    if (is_remote(rank) && !is_whole(board->calls[i])) continue;
    const CallSnapshot call = snapshot(board->calls[i]);
    if (call.sequence > last.sequence) last = call;
  }
  if (last.sequence == 0) return name_(rank) + (is_remote(rank) ? " died" : " died before its first collective call");
  const bool inside = last.state == transport::CallState::entered;
  const char* when = is_remote(rank) ? "in or after"
                     : inside        ? "in"
                                     : "after";  // a remote rank does not tell of a call's end
  return fmt::format("{} died {} {}, its call {}", name_(rank), when, last.text(), last.sequence);
}

void Waiter::part(std::uint64_t sequence) {
  const std::int64_t since = now_ns();
  // A peer that has not seen that this rank withdraws is seen as being inside. Where the kernel refuses the fence, the
  // pause stands in for it, which is longer than any store stays in a core's buffer.
  fence_everywhere();
  do {
    breathe();
    bool inside = false;
    for (int rank = 0; rank < ranks_; ++rank) {
      inside = inside || (rank != rank_ && !is_remote(rank) && is_inside(rank, sequence) && transport_.alive(rank));
    }
    if (!inside) return;
  } while (now_ns() - since < kPartNs);
}

Status Waiter::check_peer(int peer, std::uint64_t sequence) {
  const CallRecord& mine = *record_of(rank_, sequence);
  const CallRecord& theirs = *record_of(peer, sequence);
  for (const std::int64_t since = now_ns(); is_remote(peer) && !has_announced(peer, sequence) &&
                                            now_ns() - since < timeout_ns() && net_->broken(peer).ok() &&
                                            transport_.alive(peer) && !health_.failed();) {
    serve_network(now_ns(), peer, kNetSleep);
  }
  if (is_remote(peer) && !has_announced(peer, sequence)) {
    if (health_.failed()) return health_.status();
    if (!transport_.alive(peer)) return health_.fail(Code::peer_died, death_text(peer));
    if (const Status broken = net_->broken(peer); !broken.ok()) TUTTI_TRY(lost(peer, broken));
  }
  // No second look at the sequence is needed: see HostExecutor::bound_run_ahead().
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

Waiter::Difference Waiter::difference(std::uint64_t sequence) const {
  Difference found;
  std::uint64_t history = 0;
  for (int rank = 0; rank < ranks_; ++rank) {
    const CallRecord* record = record_of(rank, sequence);
    if (record == nullptr || record->sequence.load(std::memory_order_acquire) != sequence) continue;
    if (is_remote(rank) && !is_whole(*record)) continue;
    const std::uint64_t theirs = record->fingerprint.load(std::memory_order_acquire);
    if (record->sequence.load(std::memory_order_relaxed) != sequence) continue;  // overwritten meanwhile
    if (found.one < 0) {
      found.one = rank;
      history = theirs;
    } else if (theirs != history) {
      found.other = rank;
      break;
    }
  }
  return found;
}

// The sentence must not depend on who finds out, nor when: it is about the first call in which ranks differ, and names
// the lowest rank that has entered it and the first that differs from that one.
Status Waiter::mismatch(std::uint64_t sequence) {
  Difference found = difference(sequence);
  if (!found) return {};
  std::uint64_t first = sequence > kLookBack ? sequence - kLookBack : 1;
  for (; first < sequence; ++first) {
    const Difference earlier = difference(first);
    if (!earlier) continue;
    found = earlier;
    break;
  }
  const std::string one = call_text(found.one, first);
  std::string other = call_text(found.other, first);
  if (other == one) other = "the same with another algorithm asked for";
  return health_.fail(Code::mismatch,
                      fmt::format("{} called {}, {} called {}", name_(found.one), one, name_(found.other), other));
}

Status Waiter::mixed_kinds() {
  const CallRecord& own = *record_of(rank_, sequence_);
  for (int rank = 0; rank < ranks_; ++rank) {
    const Board* board = transport_.window(rank).board;
    if (rank == rank_ || board == nullptr) continue;
    const CallSnapshot theirs = called_instead(own, board->launches);
    if (theirs.sequence == 0) continue;
    return health_.fail(Code::mismatch, mixed_text(name_, rank_, snapshot(own), rank, theirs));
  }
  return {};
}

std::vector<Waiter::Pace> Waiter::paces() {
  const auto beats = [this](int rank) {
    const Board* board = transport_.window(rank).board;
    return board == nullptr ? std::uint64_t{0} : board->pulse.beats.load(std::memory_order_relaxed);
  };
  const auto awaits_answer = [&] {
    for (int rank = 0; rank < ranks_; ++rank) {
      if (is_remote(rank) && beats(rank) == 0 && !has_answered(rank)) return net_->hears_of_deaths();
    }
    return false;
  };
  if (net_ != nullptr && options_.ask) options_.ask();
  std::vector<std::uint64_t> before;
  for (int rank = 0; rank < ranks_; ++rank) before.push_back(beats(rank));
  Board& own = *transport_.window(rank_).board;
  const std::int64_t since = now_ns();
  const auto watches = [&] {
    const std::int64_t watched = now_ns() - since;
    return watched < kPulseWatchNs || (watched < kPulseWatchNs + kAnswerNs && awaits_answer());
  };
  while (watches() && !health_.failed()) {
    own.pulse.beats.fetch_add(1, std::memory_order_relaxed);
    if (net_ != nullptr) {
      serve_network(now_ns(), rank_, kNetSleep);
    } else {
      breathe();
    }
  }
  // Of whom neither a pulse nor an answer comes, nothing is known where the meeting place stands still: but that of its
  // rank. Where there is none pulses go to all.
  const bool silent_meeting = net_ != nullptr && net_->hears_of_deaths() && !has_answered(rank_);
  std::vector<Pace> paces;
  for (int rank = 0; rank < ranks_; ++rank) {
    const std::uint64_t answer = answers_[static_cast<std::size_t>(rank)].load(std::memory_order_acquire);
    const bool polls = beats(rank) != before[static_cast<std::size_t>(rank)] ||
                       (answer != kNoAnswer && (answer & kPolls) != 0) || rank == rank_;
    const bool unknown = silent_meeting && is_remote(rank) && beats(rank) == 0 && net_->member(rank) != 0;
    paces.push_back(polls ? Pace::polls : unknown ? Pace::unknown : Pace::still);
  }
  return paces;
}

// Who is late may itself be waiting for somebody. To blame are those who hold up the call and do not even poll: they
// are stopped, or busy elsewhere. Only when all poll are those named who are not where this rank waits for them.
Status Waiter::deadline_passed(int peer) {
  const std::vector<Pace> paces = this->paces();
  if (health_.failed()) return health_.status();
  if (peer == rank_) return not_taken(paces);
  // A remote rank that has not been asked may have left the call: its record does not say so.
  const bool asked = has_answered(rank_);
  std::string absent;
  std::string absent_still;
  std::string inside_still;
  std::string maybe_inside;
  for (int rank = 0; rank < ranks_; ++rank) {
    const Pace pace = paces[static_cast<std::size_t>(rank)];
    if (rank == rank_ || pace == Pace::unknown) continue;
    const bool stands = pace == Pace::still;
    if (!has_entered(rank, sequence_)) {
      add_name(absent, rank);
      if (stands) add_name(absent_still, rank);
    } else if (stands && is_inside(rank, sequence_)) {
      add_name(is_remote(rank) && !asked ? maybe_inside : inside_still, rank);
    }
  }
  const std::string call = activity(peer);
  if (!inside_still.empty()) return timeout(inside_still, "stands still inside it", call);
  if (!absent_still.empty()) return timeout(absent_still, "has not entered it", call);
  if (!absent.empty()) return timeout(absent, "has not entered it", call);
  if (!maybe_inside.empty()) return timeout(maybe_inside, "stands still inside it", call);
  return timeout(name_(peer), "has not answered", call);
}

// Whoever stands still takes nothing, and fills the way to it.
Status Waiter::not_taken(const std::vector<Pace>& paces) {
  std::string who;
  for (int rank = 0; rank < ranks_; ++rank) {
    const bool sent = is_remote(rank) && net_->has_written_to(rank);
    if (sent && paces[static_cast<std::size_t>(rank)] != Pace::polls) add_name(who, rank);
  }
  if (who.empty()) who = fmt::format("the network ({}, {})", net_->info().name, net_->info().devices);
  return timeout(who, "has not taken what was sent to it", sequence_ == 0 ? "a send" : activity(rank_));
}

bool Waiter::has_closed(int rank) const {
  const Board* board = transport_.window(rank).board;
  return board != nullptr && board->pulse.departed.load(std::memory_order_acquire) != 0;
}

Status Waiter::overdue(const PendingTransfers::Overdue& transfer) {
  const std::vector<Pace> paces = this->paces();
  if (health_.failed()) return health_.status();
  std::string absent;
  std::string others_still;
  for (int rank = 0; rank < ranks_; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    if (paces[r] != Pace::still) continue;
    if (transfer.ranks[r]) {
      add_name(absent, rank);
    } else if (!has_closed(rank)) {
      add_name(others_still, rank);
    }
  }
  if (!absent.empty()) return timeout(absent, "has not answered", transfer.text);
  if (transfer.peer < 0) return timeout("nobody", "has sent a message", transfer.text);
  if (transfer.peer == rank_) return timeout(name_(rank_), "has not made the other half of it", transfer.text);
  // A peer that polls may itself wait for one of those who do not.
  const bool peer_polls = paces[static_cast<std::size_t>(transfer.peer)] == Pace::polls;
  const std::string what = others_still.empty() || !peer_polls
                               ? "has not answered"
                               : fmt::format("has not answered and waits itself, while {} stands still", others_still);
  return timeout(name_(transfer.peer), what, transfer.text);
}

Status Waiter::timeout(const std::string& who, std::string what, const std::string& activity) {
  const bool several = who.find("), rank ") != std::string::npos;
  if (several && what.starts_with("has ")) what.replace(0, 3, "have");
  if (several && what.starts_with("stands ")) what.replace(0, 6, "stand");
  return health_.fail(Code::timeout,
                      fmt::format("{} {}; {} waited {:.1f} s in {}, and timed out{}", who, what, name_(rank_),
                                  static_cast<double>(timeout_ns()) * 1e-9, activity, obstacle()));
}

std::string Waiter::obstacle() const {
  for (int rank = 0; rank < ranks_; ++rank) {
    const std::string text = is_remote(rank) ? net_->wire().obstacle(net_->member(rank)) : "";
    if (!text.empty()) return fmt::format("; {}: {}", name_(rank), text);
  }
  return "";
}

void Waiter::add_name(std::string& list, int rank) const { list += (list.empty() ? "" : ", ") + name_(rank); }

std::string Waiter::activity(int peer) const {
  return transfers_ != nullptr ? transfers_->text(peer) : call_text(rank_, sequence_);
}

std::string Waiter::call_text(int rank, std::uint64_t sequence) const {
  const CallSnapshot call = snapshot(*record_of(rank, sequence));
  return fmt::format("{} as its call {}", call.text(), sequence);
}

}  // namespace tutti::executor
