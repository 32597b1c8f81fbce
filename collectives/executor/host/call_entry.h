// How a rank enters a call, learns that its peers have entered theirs, and leaves it. It reads and writes boards only.
//
// The gate. Calls alternate between two halves of scratch. Call k (the k-th that uses scratch or signals) touches half
// k % 2 only after every rank that shares scratch with this one in call k or in call k - 2 has entered call k - 1. By
// then no rank still uses what call k - 2 left there. A rank announces that it has entered by its Board. A signal with
// the tag of call k - 1 says so too, so in a run of all-reduces the gate costs one comparison for each peer. A call of
// express cells touches no half; its receivers must be so few calls behind that the cell is free.
//
// Remote ranks. A rank on another host sees this rank's record of a call only if it is a neighbour in that call's plan
// or was one in the call before. The record goes to it with the first data, in an express call as a part of the signal
// (net_record.h). The gate needs no more than that. Before call k touches its half, every remote peer of call k must
// have announced call k or k - 1. Every remote peer of call j, the last one that used this half, must have announced a
// call after j; then it has finished j.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "collectives/executor/host/base_table.h"
#include "collectives/executor/host/signal_links.h"
#include "collectives/executor/prepared.h"
#include "collectives/executor/record.h"
#include "collectives/executor/uneven.h"
#include "collectives/executor/wait/wait.h"
#include "transport/transport.h"

namespace tutti::executor {

/// The buffers of one call.
struct CallBuffers {
  const void* input = nullptr;
  void* output = nullptr;
  double factor = 1.0;                   // premul_sum
  const UnevenPieces* uneven = nullptr;  // all_to_allv
};

class CallEntry {
 public:
  CallEntry(transport::Transport& transport, Waiter& waiter, SignalLinks& links, BaseTable& bases, int rank);

  /// Announces the call. Every call begins with this, even one that moves nothing. `handles`: peers may want to touch
  /// the buffers.
  void enter(const Announcement& announcement, const CallBuffers& buffers, bool handles);
  void leave(bool well);
  /// Takes the announced buffers back. For a failure, before leave(). Peers that have not opened them no longer can.
  /// Peers that have are given a moment to leave the call, since its buffers may be freed when it returns.
  void withdraw();
  /// Whether bound_run_ahead() must come before the next enter().
  bool must_bound_run_ahead() const { return sequence_ % kLookEvery == kLookEvery - 1; }
  /// Keeps this rank within 2 * kLookEvery calls of the last one. A call may end before every rank has entered it (a
  /// broadcast's root, a call of no elements). Without a bound, a rank could run ahead and overwrite, on its Board,
  /// records of calls that other ranks are still in.
  Status bound_run_ahead();
  struct Agreement {
    bool registered = true;  // all ranks' buffers are
    bool in_place = false;   // some rank's are
  };
  /// Waits until all ranks have entered the call. Returns what they say of their buffers. REQUIRES: enter() with
  /// handles.
  Result<Agreement> agree();

  /// Waits until `peer` has entered the call, and finds its buffers.
  Status open(int peer);
  /// Waits until the call may touch its half of scratch, or its express cells.
  Status gate(const Prepared& prepared);
  /// Fails, after a plan that puts into scratch, if a rank in another call may have put something into this rank's.
  Status check_scratch_writers();
  /// Waits until a remote `peer` has announced that it has entered `needed` or a later call, and compares.
  Status see_entered_remote(int peer, std::uint64_t needed);
  /// A signal of this call has come from `peer`.
  void mark_entered(int peer) { peers_[static_cast<std::size_t>(peer)].entered = sequence_; }

  // What a peer that was opened passed in the call.
  double factor_of(int peer) const { return peers_[static_cast<std::size_t>(peer)].factor; }
  transport::Handle handle_of(const plan::Range& range) const {
    const Peer& p = peers_[static_cast<std::size_t>(range.rank)];
    return range.space == plan::Space::input ? p.input : p.output;
  }

  /// Returns the number of calls that were entered: that of the last one.
  std::uint64_t sequence() const { return sequence_; }
  /// Returns the history of this rank's calls, up to and with this one.
  std::uint64_t history() const { return history_; }
  std::uint64_t tag() const { return tag_; }
  /// This rank's record of the call.
  const transport::CallRecord& record() const { return board_->calls[sequence_ % transport::kCallRing]; }

 private:
  struct Peer {
    std::uint64_t entered = 0;  // the latest call that it is known to have entered, with the same history
    std::uint64_t opened = 0;   // the latest call in which it was opened
    transport::Handle input = 0;
    transport::Handle output = 0;
    std::byte* input_pointer = nullptr;  // null: only by cross-memory access
    std::byte* output_pointer = nullptr;
    double factor = 1.0;
  };
  struct Half {
    std::uint64_t prepared = 0;  // id of the plan that used it last,
    std::uint64_t call = 0;      // in this call
    std::vector<int> peers;
  };

  transport::CallRecord& record_of(int rank, std::uint64_t call) const {
    return transport_.window(rank).board->calls[call % transport::kCallRing];
  }
  bool has_entered(int peer, std::uint64_t call) const;
  /// Checks that `peer`, which has entered `call`, has made the same calls as this rank until then.
  Status compare(int peer, std::uint64_t call);
  /// Waits until `peer` has entered `call`, and compares.
  Status see_entered(int peer, std::uint64_t call);
  /// The latest call from `needed` to this one that a remote peer has announced; 0: none.
  std::uint64_t announced_by(int peer, std::uint64_t needed) const;

  transport::Transport& transport_;
  Waiter& waiter_;
  SignalLinks& links_;
  BaseTable& bases_;
  const int rank_;
  const int ranks_;
  transport::Board* const board_;
  std::uint64_t sequence_ = 0;
  std::uint64_t history_ = 0;
  std::uint64_t tag_ = 0;
  std::vector<Peer> peers_;
  Half halves_[2];
};

}  // namespace tutti::executor
