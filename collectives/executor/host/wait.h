// Waiting for a peer: spin, then yield, then sleep; and, while that lasts, find out whether it can still end well.
//
// A wait ends in one of four ways: the condition holds; somebody failed or aborted (Health); the deadline passed; or
// the peers' boards show that it can never hold, because a rank made another call or has left.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/status.h"
#include "collectives/executor/host/health.h"
#include "transport/transport.h"
#include "transport/wire/net_links.h"

namespace tutti::executor {

/// How a rank is named in errors: "rank 3 (host alpha, pid 4711)".
using RankName = std::function<std::string(int rank)>;

struct WaitOptions {
  std::chrono::nanoseconds timeout{std::chrono::minutes(5)};
  std::chrono::nanoseconds spin{std::chrono::microseconds(100)};  // before the first yield
  std::function<bool()> interrupted;                              // see tutti::Options; not in the background
  std::function<void()> ask;    // the remote ranks where they stand; their answers come to answered(). May be null
  bool oversubscribed = false;  // more ranks than cores here: yield almost at once
  bool oversubscribed_background = false;  // the same where each rank has a second thread, which computes
};

/// What signals change and waiters sleep on: a counter or a tag.
using Word = std::atomic<std::uint64_t>;

/// Ends the sleep of whoever waits on this word.
void wake(Word& word);
/// Ends the sleep of a rank that waits for several things (transport::kOnDoze).
void wake_any(transport::Doze& doze);
/// After `word` was changed: ends the sleep of whoever waits for it, alone or among other things.
inline void wake_sleeper(transport::Doze& doze, Word& word) {
  const std::uint32_t sleeping = doze.sleeping.load(std::memory_order_relaxed);
  if (sleeping == transport::kAwake) return;
  if (sleeping == transport::kOnCounter) return wake(word);
  wake_any(doze);
}

/// The sends and receives in progress, for the waiter's questions about them. Called by the waiting thread.
class PendingTransfers {
 public:
  virtual ~PendingTransfers() = default;
  /// Can one of them end only by what `rank` does?
  virtual bool needs(int rank) const = 0;
  /// Is there one that any rank may end?
  virtual bool needs_anyone() const = 0;
  /// "send(4 x f32) to rank 1 (host alpha, pid 4711)": the oldest that concerns `rank`; of all for -1.
  virtual std::string text(int rank) const = 0;
  /// One that has not moved for `limit_ns`. Each is given its time from the first look on that finds it unmoved.
  struct Overdue {
    int peer = -1;            // -1: any rank
    std::vector<bool> ranks;  // whom those wait for that were started with it
    std::string text;
  };
  virtual std::optional<Overdue> overdue(std::int64_t now_ns, std::int64_t limit_ns) = 0;
};

/// What a waiting rank looks at. One per communicator and rank.
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

  /// The number of the call in progress, for errors and for the look at the peers' boards. Collectives only; 0
  /// otherwise.
  void begin_call(std::uint64_t sequence) { sequence_ = sequence; }
  /// The same for sends and receives, which have no number; null: none.
  void set_transfers(PendingTransfers* transfers) { transfers_ = transfers; }
  /// Until holds() is true. `peer`: whom it depends on, the own rank for what was sent to other hosts and has not left;
  /// of transfers, no matter. `word`: what to sleep on; null: several things, each of which ends with wake_sleeper() or
  /// wake_any().
  template <class Holds>
  Status until(Holds&& holds, int peer, Word* word = nullptr) {
    if (holds()) return {};
    if (net_ != nullptr && !holds_back_) (void)net_->post();  // a link that has broken is found out below
    const int looks = shares_core_ ? 0 : quick_spins_;        // another has work for it
    for (int i = 0; i < looks; ++i) {
      if (net_ == nullptr) {
        cpu_relax();
      } else {
        move_remote(peer);
      }
      if (holds()) return {};
    }
    WaitState state;
    Status status;
    while (status.ok() && !holds()) status = pause(state, peer, word);
    if (state.armed) disarm();
    return status;
  }

  /// After a signal of `peer` whose tag is not that of the own call `sequence`: was it the same call all the same (the
  /// peer may be one call ahead)? If not, the failure that names both calls.
  Status check_peer(int peer, std::uint64_t sequence);
  /// The failure after a transfer's deadline has passed.
  Status overdue(const PendingTransfers::Overdue& transfer);
  /// The failure after the transport could not read or write memory of `peer`.
  Status unreachable(int peer, const Status& why);
  /// `activity`: in what this rank is, "recv(5 x f32) from rank 1 (...)".
  Status unreachable(int peer, const Status& why, const std::string& activity);
  /// After the link to a remote `peer` has broken. Ok: it has closed its communicator, and nobody misses what goes to
  /// it. Else the failure: its death, of which the meeting place tells within a moment if it is one, or `why`; both
  /// where there is no meeting place any more.
  Status lost(int peer, const Status& why);

  /// After a failure: until no peer is inside call `sequence` any more, but not for longer than half a second (one may
  /// be stopped).
  void part(std::uint64_t sequence);

  /// "rank 1 (host alpha, pid 4711) died in all_reduce(128 x f32, sum), its call 7": the same whoever says it. Any
  /// thread.
  std::string death_text(int rank) const;

  /// Whether a remote rank is known to have entered `call`, so that its record of it can be compared, or a later one.
  bool has_announced(int rank, std::uint64_t call) const;
  /// Where this rank stands, for a remote one that asks, as a word that its answered() reads: its latest call, whether
  /// it is in it, and whether it polls. Any thread.
  std::uint64_t standing() const;
  /// What a remote rank has answered, or this one: then the others have been asked. Any thread.
  void answered(int rank, std::uint64_t standing) {
    answers_[static_cast<std::size_t>(rank)].store(standing, std::memory_order_release);
  }

  /// Any thread.
  void set_timeout(std::chrono::nanoseconds timeout) { timeout_ns_.store(timeout.count(), std::memory_order_relaxed); }
  std::int64_t timeout_ns() const { return timeout_ns_.load(std::memory_order_relaxed); }
  /// "all_reduce(128 x f32, sum) as its call 7", from the board of `rank`.
  std::string call_text(int rank, std::uint64_t sequence) const;
  const RankName& name() const { return name_; }
  int rank() const { return rank_; }

 private:
  struct WaitState {
    std::int64_t since = 0;      // ns; 0: not yet looked at the clock
    std::int64_t last_look = 0;  // at the peers' boards
    std::int64_t last_ask = 0;   // whether it is interrupted
    std::int64_t lost = 0;       // ns: when a link was first found broken; 0: none was
    std::uint32_t seen = 0;      // of the word, before holds() was last asked
    int departed_peer = -1;      // seen by an earlier look
    bool has_posted = false;     // what was held back
    bool armed = false;          // the doze says that this rank sleeps: holds() is asked once more before it does
  };

  /// What a rank does as far as one can tell that has watched for a moment: whether its pulse grows, or it answers that
  /// it polls.
  enum class Pace : std::uint8_t {
    polls,
    still,
    unknown,  // far, has never written here while it waited, and cannot be asked
  };

  /// One breath of a long wait.
  Status pause(WaitState& state, int peer, Word* word);
  void sleep(WaitState& state, Word* word);
  /// The failure, where interrupted() says so.
  Status ask(WaitState& state, std::int64_t now, int peer);
  void disarm();
  /// Do the boards say that the call in progress cannot end?
  Status look_around(WaitState& state, int peer);
  /// The failure that a remote rank has told by the network.
  Status remote_failure();
  Status deadline_passed(int peer);
  /// The same where what was sent to other hosts has not left.
  Status not_taken(const std::vector<Pace>& paces);
  /// "rank 1 (...) has not answered; rank 0 (...) waited 2.0 s in ..."
  Status timeout(const std::string& who, std::string what, const std::string& activity);
  /// "; rank 3 (...): no connection to 10.0.0.9:41234 ...", of the first remote rank that is not reached as yet.
  std::string obstacle() const;
  void add_name(std::string& list, int rank) const;
  /// Whether the rank has destroyed its communicator.
  bool has_closed(int rank) const;
  bool is_remote(int rank) const { return net_ != nullptr && net_->far(rank); }
  /// Moves what the network can move, for at most `most`; tells remote ranks now and then that this rank still polls.
  /// `peer`: as of until().
  void serve_network(std::int64_t now, int peer, std::chrono::nanoseconds most);
  /// Moves what can be moved now, first of all what comes from `peer`.
  bool move_remote(int peer) {
    return transfers_ == nullptr && net_->far(peer) ? net_->progress_for(peer) : net_->progress();
  }
  /// Lets others have the core, and learns whether there are any.
  void give_way();
  bool has_answered(int rank) const {
    return answers_[static_cast<std::size_t>(rank)].load(std::memory_order_acquire) != kNoAnswer;
  }
  /// What each rank does. Asks the remote ranks where they stand: of those that have left the call, or are no
  /// neighbours in it, nothing is known here.
  std::vector<Pace> paces();
  // Two ranks whose calls up to `sequence` are not the same.
  struct Difference {
    int one = -1;
    int other = -1;
    explicit operator bool() const { return other >= 0; }
  };
  Difference difference(std::uint64_t sequence) const;
  /// The failure that names the first call in which ranks differ, when they have by call `sequence`.
  Status mismatch(std::uint64_t sequence);
  /// The failure, where a peer has passed device memory in place of the call in progress.
  Status mixed_kinds();
  /// What this rank is in, as far as `peer` is concerned.
  std::string activity(int peer) const;
  /// Where this rank finds what a remote one tells with its data in an express call.
  transport::ExpressCell& cell_from(int rank, std::uint64_t call) const;
  /// Where the record of `call` is, or would be; of a remote rank with what has come in an express cell, which is
  /// written into the mirror. Null: nowhere.
  transport::CallRecord* record_of(int rank, std::uint64_t call) const;
  // Of a remote rank as it has answered, else by what it has told of calls in which it is a neighbour.
  bool has_entered(int rank, std::uint64_t sequence) const;
  bool is_inside(int rank, std::uint64_t sequence) const;

  transport::Transport& transport_;
  transport::FarLinks* const net_;  // null: all ranks are on this host
  Health& health_;
  int rank_;
  int ranks_;
  RankName name_;
  WaitOptions options_;
  std::atomic<std::int64_t> timeout_ns_;
  static constexpr std::uint64_t kNoAnswer = ~std::uint64_t{0};
  std::vector<std::atomic<std::uint64_t>> answers_;  // where remote ranks and this one stand
  bool background_ = false;
  bool oversubscribed_;
  bool shares_core_ = false;  // it has been taken by another when this rank last gave way
  std::int64_t least_turn_ns_ = std::numeric_limits<std::int64_t>::max();  // the quickest return of sched_yield()
  int quick_spins_;
  bool holds_back_ = false;
  std::atomic<std::int64_t> last_beat_ns_{0};  // told to remote ranks
  std::uint64_t sequence_ = 0;                 // of the collective in progress
  PendingTransfers* transfers_ = nullptr;      // in progress
};

}  // namespace tutti::executor
