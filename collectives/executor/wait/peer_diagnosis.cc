#include "collectives/executor/wait/peer_diagnosis.h"

#include <fmt/format.h>

#include <chrono>
#include <cstddef>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "collectives/executor/memory_kind_check.h"
#include "collectives/executor/net_record.h"
#include "collectives/executor/record.h"

namespace tutti::executor {

using transport::Board;
using transport::CallRecord;
using transport::kCallRing;

namespace {

constexpr std::int64_t kPulseWatchNs = 200'000'000;  // a rank that polls beats far more often than this
constexpr std::int64_t kAnswerNs = 300'000'000;      // more, for the answer of a rank whose pulse is not seen here
constexpr std::int64_t kLostNs = 2'000'000'000;  // a link breaks a moment before the bootstrap server reports a death
constexpr std::chrono::milliseconds kPause{1};

}  // namespace

PeerDiagnosis::PeerDiagnosis(transport::Transport& transport, Health& health, PeerProgress& progress, int rank,
                             RankName name, std::function<void()> query_progress, std::chrono::nanoseconds timeout)
    : transport_(transport),
      net_(transport.net_links()),
      health_(health),
      progress_(progress),
      rank_(rank),
      ranks_(transport.sizes().ranks),
      name_(std::move(name)),
      query_progress_(std::move(query_progress)),
      timeout_ns_(timeout.count()) {}

void PeerDiagnosis::serve_network(int peer) {
  progress_.send_pulse(now_ns());
  const bool moved = transfers_ == nullptr && is_remote(peer) ? net_->progress_for(peer) : net_->progress();
  if (!moved) net_->sleep(kNetSleep);
}

// A rank that has closed its communicator did its part in every call that it entered, and may end when it likes: that
// is no death. Whether it is alive must be read first: it closes, then ends.
Status PeerDiagnosis::look_around(Suspicion& suspicion, int peer) {
  if (sequence_ != 0) TUTTI_TRY(mismatch(sequence_));
  if (sequence_ != 0) TUTTI_TRY(mixed_memory_kinds());
  TUTTI_TRY(remote_failure());
  int gone = -1;  // a rank that has closed its communicator, and that this rank waits for
  int open = 0;   // others that have not closed theirs
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank == rank_) continue;
    const bool alive = transport_.alive(rank);
    if (!progress_.has_closed(rank)) {
      ++open;
      if (!alive) return health_.fail(Code::peer_died, death_text(rank));
      if (!is_remote(rank)) continue;
      const Status broken = net_->broken(rank);
      if (broken.ok()) continue;
      if (broken.code() == Code::system) return unreachable(rank, broken);  // of this process, and no death
      if (suspicion.lost_ns == 0) suspicion.lost_ns = now_ns();
      if (now_ns() - suspicion.lost_ns > kLostNs) return unreachable(rank, broken);
      continue;
    }
    // A remote rank announces a call to its neighbours only; of any other one it is not known whether it did its part.
    if (transfers_ == nullptr && is_remote(rank) && rank != peer) continue;
    const bool needed = transfers_ == nullptr ? !progress_.has_entered(rank, sequence_) : transfers_->needs(rank);
    if (needed && gone < 0) gone = rank;
  }
  if (gone < 0 && transfers_ != nullptr && open == 0 && transfers_->needs_anyone()) gone = ranks_;
  if (gone < 0) return {};
  // Its last message may have come after holds() looked for it: let that look once more.
  if (transfers_ != nullptr && suspicion.peer_that_left != gone) {
    suspicion.peer_that_left = gone;
    return {};
  }
  if (gone == ranks_) {
    return health_.fail(Code::mismatch, fmt::format("all other ranks have closed their communicators, and {} is in {}",
                                                    name_(rank_), activity(-1)));
  }
  return health_.fail(Code::mismatch, fmt::format("{} has closed its communicator, and {} is in {}", name_(gone),
                                                  name_(rank_), activity(gone)));
}

Status PeerDiagnosis::remote_failure() {
  for (int rank = 0; rank < ranks_; ++rank) {
    if (!is_remote(rank)) continue;
    const Status told = Health::failure_on(*transport_.window(rank).board);
    if (told.ok()) continue;
    health_.fail_quietly(told.code(), told.message());
    return health_.status();
  }
  return {};
}

Status PeerDiagnosis::unreachable(int peer, const Status& why) { return unreachable(peer, why, activity(peer)); }

Status PeerDiagnosis::unreachable(int peer, const Status& why, const std::string& activity) {
  const bool is_silent = why.code() == Code::peer_died;
  if (is_silent && !is_remote(peer)) return health_.fail(Code::peer_died, death_text(peer));
  if (is_silent && !net_->server_reports_deaths()) {
    return health_.fail(Code::peer_died, fmt::format("{}, or is cut off: {}", death_text(peer), why.message()));
  }
  // A remote process whose link is broken may well live; if not, the bootstrap server would have reported it.
  return health_.fail(is_silent ? Code::system : why.code(),
                      fmt::format("{} in {} with {}: {}", name_(rank_), activity, name_(peer), why.message()));
}

Status PeerDiagnosis::lost(int peer, const Status& why) {
  for (const std::int64_t since = now_ns(); now_ns() - since < kLostNs && !health_.failed();) {
    if (!transport_.alive(peer)) return health_.fail(Code::peer_died, death_text(peer));
    TUTTI_TRY(remote_failure());
    // A peer that has closed its communicator did its part, and needs no more messages.
    if (transport_.window(peer).board->pulse.has_left.load(std::memory_order_acquire) != 0) return {};
    if (!net_->progress()) std::this_thread::sleep_for(kPause);
  }
  return health_.failed() ? health_.status() : unreachable(peer, why);
}

std::string PeerDiagnosis::death_text(int rank) const {
  const Board* board = transport_.window(rank).board;
  if (is_remote(rank)) progress_.read_cells(rank);
  CallSnapshot last;
  for (int i = 0; board != nullptr && i < kCallRing; ++i) {
    if (is_remote(rank) && !is_complete(board->calls[i])) continue;
    const CallSnapshot call = snapshot(board->calls[i]);
    if (call.sequence > last.sequence) last = call;
  }
  if (last.sequence == 0) return name_(rank) + (is_remote(rank) ? " died" : " died before its first collective call");
  const bool inside = last.state == transport::CallState::entered;
  // A remote rank does not announce the end of a call.
  const char* when = is_remote(rank) ? "in or after" : inside ? "in" : "after";
  return fmt::format("{} died {} {}, its call {}", name_(rank), when, last.text(), last.sequence);
}

Status PeerDiagnosis::check_peer(int peer, std::uint64_t sequence) {
  const CallRecord& mine = *progress_.record_of(rank_, sequence);
  const CallRecord& theirs = *progress_.record_of(peer, sequence);
  for (const std::int64_t since = now_ns(); is_remote(peer) && !progress_.has_announced(peer, sequence) &&
                                            now_ns() - since < timeout_ns() && net_->broken(peer).ok() &&
                                            transport_.alive(peer) && !health_.failed();) {
    serve_network(peer);
  }
  if (is_remote(peer) && !progress_.has_announced(peer, sequence)) {
    if (health_.failed()) return health_.status();
    if (!transport_.alive(peer)) return health_.fail(Code::peer_died, death_text(peer));
    if (const Status broken = net_->broken(peer); !broken.ok()) TUTTI_TRY(lost(peer, broken));
  }
  // No second look at the sequence is needed: see CallEntry::bound_run_ahead().
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

PeerDiagnosis::Difference PeerDiagnosis::difference(std::uint64_t sequence) const {
  Difference found;
  std::uint64_t history = 0;
  for (int rank = 0; rank < ranks_; ++rank) {
    const CallRecord* record = progress_.record_of(rank, sequence);
    if (record == nullptr || record->sequence.load(std::memory_order_acquire) != sequence) continue;
    if (is_remote(rank) && !is_complete(*record)) continue;
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

// The sentence must not depend on which rank finds out, nor when: it is about the first call in which ranks differ, and
// names the lowest rank that has entered it and the first that differs from that one.
Status PeerDiagnosis::mismatch(std::uint64_t sequence) {
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

Status PeerDiagnosis::mixed_memory_kinds() {
  const CallRecord& own = *progress_.record_of(rank_, sequence_);
  for (int rank = 0; rank < ranks_; ++rank) {
    const Board* board = transport_.window(rank).board;
    if (rank == rank_ || board == nullptr) continue;
    const CallSnapshot theirs = called_instead(own, board->launches);
    if (theirs.sequence == 0) continue;
    return health_.fail(Code::mismatch, mixed_text(name_, rank_, snapshot(own), rank, theirs));
  }
  return {};
}

std::vector<PeerDiagnosis::Pace> PeerDiagnosis::paces() {
  const auto awaits_answer = [&] {
    for (int rank = 0; rank < ranks_; ++rank) {
      if (is_remote(rank) && progress_.pulse_of(rank) == 0 && !progress_.has_answered(rank)) {
        return net_->server_reports_deaths();
      }
    }
    return false;
  };
  if (net_ != nullptr && query_progress_) query_progress_();
  std::vector<std::uint64_t> before;
  for (int rank = 0; rank < ranks_; ++rank) before.push_back(progress_.pulse_of(rank));
  const std::int64_t since = now_ns();
  const auto watches = [&] {
    const std::int64_t watched = now_ns() - since;
    return watched < kPulseWatchNs || (watched < kPulseWatchNs + kAnswerNs && awaits_answer());
  };
  while (watches() && !health_.failed()) {
    progress_.beat();
    if (net_ != nullptr) {
      serve_network(rank_);
    } else {
      std::this_thread::sleep_for(kPause);
    }
  }
  // If the bootstrap server is stopped, nothing is known of a rank that has neither a pulse nor an answer, except of
  // the server's own rank. Without a bootstrap server pulses go to all.
  const bool silent_server = net_ != nullptr && net_->server_reports_deaths() && !progress_.has_answered(rank_);
  std::vector<Pace> paces;
  for (int rank = 0; rank < ranks_; ++rank) {
    const std::uint64_t pulse = progress_.pulse_of(rank);
    const bool polls =
        pulse != before[static_cast<std::size_t>(rank)] || progress_.answers_that_it_polls(rank) || rank == rank_;
    const bool unknown = silent_server && is_remote(rank) && pulse == 0 && net_->world_rank(rank) != 0;
    paces.push_back(polls ? Pace::polls : unknown ? Pace::unknown : Pace::still);
  }
  return paces;
}

// A rank that is late may itself be waiting for another. To blame are the ranks that hold up the call and do not even
// poll: they are stopped, or busy elsewhere. If all poll, those are named that are not where this rank waits for them.
Status PeerDiagnosis::deadline_passed(int peer) {
  const std::vector<Pace> paces = this->paces();
  if (health_.failed()) return health_.status();
  if (peer == rank_) return not_taken(paces);
  // A remote rank that has not been asked may have left the call: its record does not say so.
  const bool asked = progress_.has_answered(rank_);
  std::string absent;
  std::string absent_still;
  std::string inside_still;
  std::string maybe_inside;
  for (int rank = 0; rank < ranks_; ++rank) {
    const Pace pace = paces[static_cast<std::size_t>(rank)];
    if (rank == rank_ || pace == Pace::unknown) continue;
    const bool stands = pace == Pace::still;
    if (!progress_.has_entered(rank, sequence_)) {
      add_name(absent, rank);
      if (stands) add_name(absent_still, rank);
    } else if (stands && progress_.is_inside(rank, sequence_)) {
      add_name(is_remote(rank) && !asked ? maybe_inside : inside_still, rank);
    }
  }
  const std::string call = activity(peer);
  if (!inside_still.empty()) return timeout(inside_still, "is stuck in it", call);
  if (!absent_still.empty()) return timeout(absent_still, "has not entered it", call);
  if (!absent.empty()) return timeout(absent, "has not entered it", call);
  if (!maybe_inside.empty()) return timeout(maybe_inside, "is stuck in it", call);
  return timeout(name_(peer), "has not answered", call);
}

// A rank that stands still takes nothing, and fills the way to it.
Status PeerDiagnosis::not_taken(const std::vector<Pace>& paces) {
  std::string who;
  for (int rank = 0; rank < ranks_; ++rank) {
    const bool sent = is_remote(rank) && net_->has_written_to(rank);
    if (sent && paces[static_cast<std::size_t>(rank)] != Pace::polls) add_name(who, rank);
  }
  if (who.empty()) who = fmt::format("the network ({}, {})", net_->info().name, net_->info().devices);
  return timeout(who, "has not taken what was sent to it", sequence_ == 0 ? "a send" : activity(rank_));
}

Status PeerDiagnosis::overdue(const PendingTransfers::Overdue& transfer) {
  const std::vector<Pace> paces = this->paces();
  if (health_.failed()) return health_.status();
  std::string absent;
  std::string others_still;
  for (int rank = 0; rank < ranks_; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    if (paces[r] != Pace::still) continue;
    if (transfer.ranks[r]) {
      add_name(absent, rank);
    } else if (!progress_.has_closed(rank)) {
      add_name(others_still, rank);
    }
  }
  if (!absent.empty()) return timeout(absent, "has not answered", transfer.text);
  if (transfer.peer < 0) return timeout("no rank", "has sent a message", transfer.text);
  if (transfer.peer == rank_) return timeout(name_(rank_), "has not made the other half of it", transfer.text);
  // A peer that polls may itself wait for a rank that does not.
  const bool peer_polls = paces[static_cast<std::size_t>(transfer.peer)] == Pace::polls;
  const std::string what = others_still.empty() || !peer_polls
                               ? "has not answered"
                               : fmt::format("has not answered and waits itself, while {} stands still", others_still);
  return timeout(name_(transfer.peer), what, transfer.text);
}

Status PeerDiagnosis::timeout(const std::string& who, std::string what, const std::string& activity) {
  const bool several = who.find("), rank ") != std::string::npos;
  if (several && what.starts_with("has ")) what.replace(0, 3, "have");
  if (several && what.starts_with("stands ")) what.replace(0, 6, "stand");
  return health_.fail(Code::timeout,
                      fmt::format("{} {}; {} waited {:.1f} s in {}, and timed out{}", who, what, name_(rank_),
                                  static_cast<double>(timeout_ns()) * 1e-9, activity, obstacle()));
}

std::string PeerDiagnosis::obstacle() const {
  for (int rank = 0; rank < ranks_; ++rank) {
    const std::string text = is_remote(rank) ? net_->wire().obstacle(net_->world_rank(rank)) : "";
    if (!text.empty()) return fmt::format("; {}: {}", name_(rank), text);
  }
  return "";
}

void PeerDiagnosis::add_name(std::string& list, int rank) const { list += (list.empty() ? "" : ", ") + name_(rank); }

std::string PeerDiagnosis::activity(int peer) const {
  return transfers_ != nullptr ? transfers_->text(peer) : call_text(rank_, sequence_);
}

std::string PeerDiagnosis::call_text(int rank, std::uint64_t sequence) const {
  const CallSnapshot call = snapshot(*progress_.record_of(rank, sequence));
  return fmt::format("{} as its call {}", call.text(), sequence);
}

}  // namespace tutti::executor
