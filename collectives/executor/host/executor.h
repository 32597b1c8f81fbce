// Carries out the calls of one rank on host memory.
//
// How: a call goes through enter(), run() and leave(). The parts:
//   CallEntry    enters and leaves calls, and keeps ranks apart that must not be in the same scratch (boards only)
//   PlanWalker   walks the plan's steps: moves, reduces, signals, waits
//   NetSteps     sends what ranks on other hosts need: announcements, data, signals
// They share the signal cells (SignalLinks), the addresses of spaces (BaseTable), and the call's number and tag.
//
// Errors: any failure of a call is final for the communicator.
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/status.h"
#include "collectives/executor/host/base_table.h"
#include "collectives/executor/host/call_entry.h"
#include "collectives/executor/host/net_steps.h"
#include "collectives/executor/host/plan_walker.h"
#include "collectives/executor/host/signal_links.h"
#include "collectives/executor/prepared.h"
#include "collectives/executor/record.h"
#include "collectives/executor/wait/health.h"
#include "collectives/executor/wait/wait.h"
#include "transport/transport.h"

namespace tutti::executor {

/// Since the executor was made.
struct Counters {
  std::uint64_t calls = 0;
  std::uint64_t bytes = 0;  // moved over links: written to a peer's memory or read from it
  std::uint64_t signals = 0;
};

class HostExecutor {
 public:
  using Buffers = CallBuffers;
  using Agreement = CallEntry::Agreement;
  using RemoteMove = executor::RemoteMove;

  HostExecutor(transport::Transport& transport, Waiter& waiter, Health& health, int rank);

  /// Announces the call. Every call begins with this, even one that moves nothing. `handles`: peers may want to touch
  /// the buffers. Returns the call's number.
  std::uint64_t enter(const Announcement& announcement, const Buffers& buffers, bool handles);
  /// Whether bound_run_ahead() must come before the next enter().
  bool must_bound_run_ahead() const { return entry_.must_bound_run_ahead(); }
  /// Keeps this rank within 2 * kLookEvery calls of the last one. A call may end before every rank has entered it (a
  /// broadcast's root, a call of no elements). Without a bound, a rank could run ahead and overwrite, on its Board,
  /// records of calls that other ranks are still in.
  Status bound_run_ahead() { return entry_.bound_run_ahead(); }
  /// Waits until all ranks have entered the call. Returns what they say of their buffers. REQUIRES: enter() with
  /// handles.
  Result<Agreement> agree() { return entry_.agree(); }
  /// Carries the plan out. REQUIRES: enter().
  Status run(const Prepared& prepared, const Buffers& buffers);
  /// Announces a call without a plan, among several hosts, to all remote ranks, and waits until they have announced it
  /// too. Since no rank runs ahead, each finds the others' records where it looks for them. REQUIRES: enter().
  Status meet_remote_ranks();
  /// Carries out a call without a plan between memory that is no window (a GPU's): puts to each of `peers` when it has
  /// entered the call. Returns when all of theirs has come and this rank's has been read. REQUIRES: enter(); `peers`
  /// are remote, and name this rank too.
  Status move_remote(std::span<const int> peers, std::span<const RemoteMove> moves);
  /// Makes the network read no buffer of the call from now on. For a failure, before leave().
  void drop_net_puts() {
    if (net_) net_->puts().drop();
  }
  /// Takes the announced buffers back. For a failure, before leave(). Peers that have not opened them no longer can.
  /// Peers that have are given a moment to leave the call, since its buffers may be freed when it returns.
  void withdraw() { entry_.withdraw(); }
  void leave(bool well) { entry_.leave(well); }

  std::uint64_t sequence() const { return entry_.sequence(); }
  Counters counters() const;
  static constexpr std::size_t kBounceBytes = PlanWalker::kBounceBytes;
  std::size_t bounce_bytes() const { return walker_.bounce_bytes(); }
  void set_trace(StepTrace* trace) { walker_.set_trace(trace); }

 private:
  /// Runs the steps as run() does, but leaves redirects open after a failure.
  Status run_steps(const Prepared& prepared, const Buffers& buffers);

  const int ranks_;
  SignalLinks links_;
  BaseTable bases_;
  CallEntry entry_;
  std::optional<NetSteps> net_;  // none: all ranks are on this host
  PlanWalker walker_;
  std::uint64_t calls_ = 0;
  Counters moved_;  // by move_remote()
};

}  // namespace tutti::executor
