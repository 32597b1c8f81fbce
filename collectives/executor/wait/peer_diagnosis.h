// Finds out why a wait does not end, and says it in a sentence: which rank made another call, died, left, or is late.
//
// How: it reads the peers' boards, liveness and links (PeerProgress, Transport). Sentences do not depend on which rank
// finds a failure first; Health keeps the first one.
//
// Errors: each function that returns a Status has claimed its failure in Health.
// Threads: death_text() and the timeout from any thread; the rest one at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "collectives/executor/wait/health.h"
#include "collectives/executor/wait/peer_progress.h"
#include "transport/transport.h"
#include "transport/wire/net_links.h"

namespace tutti::executor {

/// How a rank is named in errors: "rank 3 (host alpha, pid 4711)".
using RankName = std::function<std::string(int rank)>;

/// The sends and receives in progress, for questions about them. Called by the waiting thread.
class PendingTransfers {
 public:
  virtual ~PendingTransfers() = default;
  /// Can one of them end only by what `rank` does?
  virtual bool needs(int rank) const = 0;
  /// Is there one that any rank may end?
  virtual bool needs_anyone() const = 0;
  /// "send(4 x f32) to rank 1 (host alpha, pid 4711)": the oldest that concerns `rank`; of all for -1.
  virtual std::string text(int rank) const = 0;
  /// A transfer that has not moved for `limit_ns`, which begins at the first look that finds it unmoved.
  struct Overdue {
    int peer = -1;            // -1: any rank
    std::vector<bool> ranks;  // the ranks that those wait for that were started with it
    std::string text;
  };
  virtual std::optional<Overdue> overdue(std::int64_t now_ns, std::int64_t limit_ns) = 0;
};

class PeerDiagnosis {
 public:
  /// `query_progress`: asks the remote ranks where they stand; may be null.
  PeerDiagnosis(transport::Transport& transport, Health& health, PeerProgress& progress, int rank, RankName name,
                std::function<void()> query_progress, std::chrono::nanoseconds timeout);

  /// The number of the collective in progress; 0: none.
  void begin_call(std::uint64_t sequence) { sequence_ = sequence; }
  /// The sends and receives in progress, which have no number; null: none.
  void set_transfers(PendingTransfers* transfers) { transfers_ = transfers; }
  PendingTransfers* transfers() const { return transfers_; }
  void set_timeout(std::chrono::nanoseconds timeout) { timeout_ns_.store(timeout.count(), std::memory_order_relaxed); }
  std::int64_t timeout_ns() const { return timeout_ns_.load(std::memory_order_relaxed); }
  const RankName& name() const { return name_; }
  int rank() const { return rank_; }

  /// Observations of one wait so far.
  struct Suspicion {
    std::int64_t lost_ns = 0;  // when a link was first found broken; 0: none was
    int peer_that_left = -1;   // seen by an earlier look
  };
  /// Reads the boards: ok unless they say that the call in progress cannot end. `peer`: as in Waiter::until().
  Status look_around(Suspicion& suspicion, int peer);
  /// The failure after the timeout of a collective.
  Status deadline_passed(int peer);
  /// The failure after the timeout of a transfer.
  Status overdue(const PendingTransfers::Overdue& transfer);
  /// Checks a signal of `peer` whose tag is not that of call `sequence`: ok if it was the same call all the same (the
  /// peer may be one call ahead). Else the failure that names both calls.
  Status check_peer(int peer, std::uint64_t sequence);
  /// The failure after the transport could not read or write memory of `peer`. `activity`: what this rank is doing,
  /// "recv(5 x f32) from rank 1 (...)"; without it, what is in progress.
  Status unreachable(int peer, const Status& why);
  Status unreachable(int peer, const Status& why, const std::string& activity);
  /// Diagnoses a broken link to a remote `peer`. Ok: it has closed its communicator and needs no more messages. Else
  /// its death, which the bootstrap server reports within a moment, or `why`. Both if there is no bootstrap server.
  Status lost(int peer, const Status& why);

  /// "rank 1 (host alpha, pid 4711) died in all_reduce(128 x f32, sum), its call 7": the same on all ranks.
  std::string death_text(int rank) const;
  /// Returns what this rank is doing that concerns `peer`: "all_reduce(128 x f32, sum) as its call 7".
  std::string activity(int peer) const;

 private:
  /// A rank's pace, after it was watched for a moment: whether its pulse grows, or it answers that it polls.
  enum class Pace : std::uint8_t {
    polls,
    still,
    unknown,  // a remote rank that has never written here while it waited, and cannot be asked
  };
  // Two ranks whose calls up to some number are not the same.
  struct Difference {
    int one = -1;
    int other = -1;
    explicit operator bool() const { return other >= 0; }
  };

  bool is_remote(int rank) const { return progress_.is_remote(rank); }
  /// Moves what the network can move, or sleeps until it may.
  void serve_network(int peer);
  /// Watches all ranks. Asks the remote ranks where they stand: nothing is known here of those that have left the call,
  /// or are no neighbours in it.
  std::vector<Pace> paces();
  Difference difference(std::uint64_t sequence) const;
  /// The failure that names the first call in which ranks differ, if they have by call `sequence`.
  Status mismatch(std::uint64_t sequence);
  /// The failure, if a peer has passed device memory in place of the call in progress.
  Status mixed_memory_kinds();
  /// The failure that a remote rank has reported over the network.
  Status remote_failure();
  /// The failure after the timeout, if what was sent to other hosts has not left.
  Status not_taken(const std::vector<Pace>& paces);
  /// "rank 1 (...) has not answered; rank 0 (...) waited 2.0 s in ..."
  Status timeout(const std::string& who, std::string what, const std::string& activity);
  /// "; rank 3 (...): no connection to 10.0.0.9:41234 ...", of the first remote rank that is not reached as yet.
  std::string obstacle() const;
  void add_name(std::string& list, int rank) const;
  std::string call_text(int rank, std::uint64_t sequence) const;

  transport::Transport& transport_;
  transport::NetLinks* const net_;  // null: all ranks are on this host
  Health& health_;
  PeerProgress& progress_;
  const int rank_;
  const int ranks_;
  const RankName name_;
  const std::function<void()> query_progress_;
  std::atomic<std::int64_t> timeout_ns_;
  std::uint64_t sequence_ = 0;
  PendingTransfers* transfers_ = nullptr;
};

}  // namespace tutti::executor
