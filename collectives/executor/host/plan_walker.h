// Walks a plan on the host. It knows steps, memory and signals, and no algorithm's name.
//
// Slot rotation. Within its half of scratch a large call begins where the last one ended. A line that was read a moment
// ago lies in the reader's second-level cache. To write it again costs a message to that core: 9 GB/s, where a line
// that has left for the third level takes 40 (measured: perf/findings.md).
//
// Files: plan_walker.cc (steps in memory), plan_walker_net.cc (steps that reach other hosts), cma.cc (cross-memory).
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/even_share.h"
#include "base/status.h"
#include "collectives/executor/host/base_table.h"
#include "collectives/executor/host/call_entry.h"
#include "collectives/executor/host/net_steps.h"
#include "collectives/executor/host/signal_links.h"
#include "collectives/executor/host/slot_stores.h"
#include "collectives/executor/prepared.h"
#include "collectives/executor/wait/health.h"
#include "collectives/executor/wait/wait.h"
#include "transport/transport.h"

namespace tutti::executor {

class StepTrace;

class PlanWalker {
 public:
  /// `net`: null if all ranks are on this host.
  PlanWalker(transport::Transport& transport, Waiter& waiter, Health& health, CallEntry& entry, SignalLinks& links,
             BaseTable& bases, NetSteps* net, int rank);

  /// Passes the gate and runs all steps. REQUIRES: the call was entered.
  Status run(const Prepared& prepared, const CallBuffers& buffers);
  /// Carries out a call without a plan between memory that is no window (a GPU's): puts to each of `peers` when it has
  /// entered the call. Returns when all of theirs has come and this rank's has been read. REQUIRES: the call was
  /// entered; `peers` are remote, and name this rank too.
  Status move_remote(std::span<const int> peers, std::span<const RemoteMove> moves);

  /// The buffer that cross-memory access reads into; allocated when it is first needed.
  static constexpr std::size_t kBounceBytes = std::size_t{512} << 10;
  std::size_t bounce_bytes() const { return bounce_.capacity(); }
  void set_trace(StepTrace* trace) { trace_ = trace; }
  std::uint64_t bytes() const { return bytes_; }      // moved over links
  std::uint64_t signals() const { return signals_; }  // sent

 private:
  // Where a lane stands.
  struct Cursor {
    int round = 0;
    std::size_t step = 0;
    // Until where redirect_ahead() has looked.
    int ahead_round = 0;
    std::size_t ahead_step = 0;
  };
  enum class Progress { done, blocked };

  Status walk(const Prepared& prepared, const CallBuffers& buffers);
  /// Sets where this call's slots begin in its half.
  void place(const Prepared& prepared);
  Status walk_lanes(const Prepared& prepared, const CallBuffers& buffers);
  Result<Progress> walk_lane(const Prepared& prepared, const CallBuffers& buffers, int lane, Cursor& cursor,
                             bool may_block);
  Status step(const Prepared& prepared, const PreparedStep& step, const CallBuffers& buffers, int round, int lane);
  /// The i-th piece of a range of some caller's buffer, in elements.
  static Share share_of(const Prepared& prepared, const plan::Range& range, int i, const CallBuffers& buffers);
  static std::size_t elements_of(const Prepared& prepared, const PreparedStep& step, int i, const CallBuffers& buffers);
  /// Calls pass(offsets, elements) for each run of bytes that the step moves in a round; the offsets are those of its
  /// sources and then its destinations, from their bases.
  template <class Pass>
  Status each_pass(const Prepared& prepared, const PreparedStep& step, const CallBuffers& buffers, int round,
                   Pass&& pass);
  Status pass(const Prepared& prepared, const PreparedStep& step, const CallBuffers& buffers,
              std::span<const std::size_t> offsets, std::size_t elements, int lane);
  Status pass_cma(const Prepared& prepared, const PreparedStep& step, const CallBuffers& buffers,
                  std::span<const std::size_t> offsets, std::size_t elements);
  double factor_of(const PreparedRange& range, const CallBuffers& buffers) const;

  void signal(int peer, int lane, int channel);
  /// Waits for the next signal of `peer`. Returns true if it has come; with may_block, waits for it.
  Result<bool> wait(int peer, int lane, int channel, bool may_block);
  // The same for plans whose data fits into the signal.
  void signal_express(const Prepared& prepared, int peer);
  Status wait_express(int peer);
  Status wait_express_remote(int peer);
  /// The condition of a wait in an express call, which announces the call if it has not held for many looks.
  template <class Holds>
  auto announcing_pending(Holds holds) {
    return [this, holds, looks = 0]() mutable {
      if (holds()) return true;
      if (++looks == kLooksBeforeAnnouncing && net_ != nullptr) net_->announce_pending();
      return false;
    };
  }
  static constexpr int kLooksBeforeAnnouncing = 500;  // a millisecond, or more if it sleeps between looks

  // plan_walker_net.cc
  /// Sends a signal to any peer of a job of several hosts.
  Status signal_over_net(const Prepared& prepared, const PreparedStep& step, int lane);
  /// Puts into the scratch of a remote rank.
  Status put_remote(const Prepared& prepared, const PreparedStep& step, const CallBuffers& buffers,
                    std::span<const std::size_t> offsets, std::size_t elements, int lane);
  /// Lets later messages that will be copied to the output come there at once, before a wait.
  Status redirect_ahead(const Prepared& prepared, const CallBuffers& buffers, int lane, Cursor& cursor);
  /// Whether that has happened to what was put to this slot, whose signal has come.
  bool was_redirected(const void* slot);
  /// Ends what a failure has left: nothing comes to the output by itself from now on.
  void end_redirects();

  transport::Transport& transport_;
  Waiter& waiter_;
  Health& health_;
  CallEntry& entry_;
  SignalLinks& links_;
  BaseTable& table_;
  NetSteps* const net_;  // null: all ranks are on this host
  const int rank_;
  const int ranks_;
  BaseTable::Bases* bases_ = nullptr;  // of the call in progress
  std::size_t origins_[4] = {};        // by space: where this call's slots begin
  struct Rotation {                    // of a half: where the next large call's slots begin
    std::size_t scratch = 0;
    std::size_t published = 0;
  } rotation_[2];
  bool warm_ = false;                    // the transport is
  std::vector<const void*> redirected_;  // slots that messages may pass by on their way to the output
  std::vector<std::byte> bounce_;        // what cross-memory access reads into
  SlotStores slot_stores_;
  std::uint64_t bytes_ = 0;
  std::uint64_t signals_ = 0;
  StepTrace* trace_ = nullptr;
};

}  // namespace tutti::executor
