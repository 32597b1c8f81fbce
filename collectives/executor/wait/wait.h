// Waiting for a peer: spin, then yield, then sleep. A long wait also finds out whether it can still end well.
//
// A wait ends in one of four ways. The condition holds. Some rank failed or aborted (Health). The deadline passed. Or
// the peers' boards show that it can never hold, because a rank made another call or has left (PeerDiagnosis).
//
// Threads: one at a time, unless a function says otherwise.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/status.h"
#include "collectives/executor/wait/health.h"
#include "collectives/executor/wait/peer_diagnosis.h"
#include "collectives/executor/wait/peer_progress.h"
#include "transport/transport.h"
#include "transport/wire/net_links.h"

namespace tutti::executor {

struct WaitOptions {
  std::chrono::nanoseconds timeout{std::chrono::minutes(5)};
  std::chrono::nanoseconds spin{std::chrono::microseconds(100)};  // before the first yield
  std::function<bool()> interrupted;                              // see tutti::Options; not in the background
  std::function<void()> ask;    // the remote ranks where they stand; their answers come to answered(). May be null
  bool oversubscribed = false;  // more ranks than cores here: yield almost at once
  bool oversubscribed_background = false;  // the same where each rank has a second thread, which computes
};

/// A counter or a tag that signals change and waiters sleep on.
using Word = std::atomic<std::uint64_t>;

/// Ends the sleep of the thread that waits on this word.
void wake(Word& word);
/// Ends the sleep of a rank that waits for several things (transport::kOnAny).
void wake_any(transport::SleepState& sleep);
/// Ends the sleep of a rank that waits for `word`, alone or among other things, after the word was changed.
inline void wake_sleeper(transport::SleepState& sleep, Word& word) {
  const std::uint32_t sleeping = sleep.state.load(std::memory_order_relaxed);
  if (sleeping == transport::kAwake) return;
  if (sleeping == transport::kOnCounter) return wake(word);
  wake_any(sleep);
}

/// One per communicator and rank.
class Waiter {
 public:
  Waiter(transport::Transport& transport, Health& health, int rank, RankName name, WaitOptions options);

  /// Whether the calls that follow run beside the caller's own thread, or on it.
  void set_background(bool background) {
    background_ = background;
    oversubscribed_ = background ? options_.oversubscribed_background : options_.oversubscribed;
    // A look at the network is a call of the kernel, as dear as a hundred at memory.
    quick_spins_ = oversubscribed_ || net_ != nullptr ? 20 : 2000;
  }

  /// Whether what was put to remote ranks and not sent yet may stay so until it goes with something else, or a wait
  /// takes long.
  void hold_back(bool hold_back) { holds_back_ = hold_back; }

  /// The number of the collective in progress, for errors and for the look at the peers' boards; 0: none.
  void begin_call(std::uint64_t sequence) { diagnosis_.begin_call(sequence); }
  /// The sends and receives in progress, which have no number; null: none.
  void set_transfers(PendingTransfers* transfers) { diagnosis_.set_transfers(transfers); }
  /// Waits until holds() is true. `peer`: the rank that it depends on; this rank, if what was sent to other hosts has
  /// not left; ignored for transfers. `word`: what to sleep on; null: several things, each of which ends with
  /// wake_sleeper() or wake_any().
  template <class Holds>
  Status until(Holds&& holds, int peer, Word* word = nullptr) {
    if (holds()) return {};
    if (net_ != nullptr && !holds_back_) (void)net_->flush();  // a link that has broken is found out below
    const int looks = shares_core_ ? 0 : quick_spins_;         // another thread has work for it
    for (int i = 0; i < looks; ++i) {
      if (net_ == nullptr) {
        cpu_relax();
      } else {
        progress_network(peer);
      }
      if (holds()) return {};
    }
    WaitState state;
    Status status;
    while (status.ok() && !holds()) status = pause(state, peer, word);
    if (state.armed) disarm();
    return status;
  }

  /// Waits, after a failure, until no peer is inside call `sequence`, but not longer than half a second (a peer may be
  /// stopped).
  void part(std::uint64_t sequence);

  // See PeerDiagnosis and PeerProgress.
  Status check_peer(int peer, std::uint64_t sequence) { return diagnosis_.check_peer(peer, sequence); }
  Status overdue(const PendingTransfers::Overdue& transfer) { return diagnosis_.overdue(transfer); }
  Status unreachable(int peer, const Status& why) { return diagnosis_.unreachable(peer, why); }
  Status unreachable(int peer, const Status& why, const std::string& activity) {
    return diagnosis_.unreachable(peer, why, activity);
  }
  Status lost(int peer, const Status& why) { return diagnosis_.lost(peer, why); }
  bool has_announced(int rank, std::uint64_t call) const { return progress_.has_announced(rank, call); }
  const RankName& name() const { return diagnosis_.name(); }
  int rank() const { return diagnosis_.rank(); }
  // These from any thread.
  std::string death_text(int rank) const { return diagnosis_.death_text(rank); }
  std::uint64_t standing() const { return progress_.standing(); }
  void answered(int rank, std::uint64_t standing) { progress_.answered(rank, standing); }
  void set_timeout(std::chrono::nanoseconds timeout) { diagnosis_.set_timeout(timeout); }
  std::int64_t timeout_ns() const { return diagnosis_.timeout_ns(); }

 private:
  struct WaitState {
    std::int64_t since = 0;      // ns; 0: not yet looked at the clock
    std::int64_t last_look = 0;  // at the peers' boards
    std::int64_t last_ask = 0;   // whether it is interrupted
    PeerDiagnosis::Suspicion suspicion;
    std::uint32_t seen = 0;    // of the word, before holds() was last asked
    bool has_flushed = false;  // what was held back
    bool armed = false;        // the board says that this rank sleeps: holds() is asked once more before it does
  };

  /// One pause of a long wait.
  Status pause(WaitState& state, int peer, Word* word);
  void sleep(WaitState& state, Word* word);
  /// The failure, if interrupted() says so.
  Status ask(WaitState& state, std::int64_t now, int peer);
  void disarm();
  /// Moves what the network can move, for at most `most`; shows remote ranks now and then that this rank still polls.
  /// `peer`: as in until().
  void serve_network(std::int64_t now, int peer, std::chrono::nanoseconds most);
  /// Moves what can be moved now, first of all what comes from `peer`.
  bool progress_network(int peer) {
    return diagnosis_.transfers() == nullptr && net_->is_remote(peer) ? net_->progress_for(peer) : net_->progress();
  }
  /// Lets others have the core, and learns whether there are any.
  void give_way();

  transport::Transport& transport_;
  transport::NetLinks* const net_;  // null: all ranks are on this host
  Health& health_;
  WaitOptions options_;
  PeerProgress progress_;
  PeerDiagnosis diagnosis_;
  bool background_ = false;
  bool oversubscribed_;
  bool shares_core_ = false;  // another thread had it when this rank last gave way
  std::int64_t least_yield_ns_ = std::numeric_limits<std::int64_t>::max();  // the quickest return of sched_yield()
  int quick_spins_;
  bool holds_back_ = false;
};

}  // namespace tutti::executor
