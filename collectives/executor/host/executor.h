// Walks a plan on the host. It knows steps, memory and signals, and no algorithm's name.
//
// The gate. Calls alternate between two halves of scratch. Call k (the k-th that uses scratch or signals) touches half
// k % 2 only after every rank that shares scratch with this one in call k or in call k - 2 has entered call k - 1: then
// nobody is still busy with what call k - 2 left there. Ranks tell that they entered by their Board; a signal that
// bears the tag of call k - 1 tells it for free, so in a run of all-reduces the gate costs one comparison for each
// peer. A call of express cells touches no half; its receivers must be so few calls behind that the cell is free.
//
// Slot rotation. Within its half a large call begins where the last one ended. A line that was read a moment ago lies in the
// reader's second-level cache, and to write it again costs a message to that core: 9 GB/s, where a line that has left
// for the third level takes 40 (measured: perf/findings.md).
//
// Remote ranks. A rank on another host sees this rank's record of a call only when it is a neighbour in that call's
// plan, or was one in the call before: the record goes to it with the first data, in an express call as a part of the
// signal (net_record.h). That is enough for the gate. A neighbour of now tells that it has entered this call, or the
// one before. A neighbour of the last call in this half tells that it has entered the next one, and so is done with it;
// what came in between does not matter.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "collectives/executor/host/health.h"
#include "collectives/executor/host/net_puts.h"
#include "collectives/executor/host/slot_stores.h"
#include "collectives/executor/host/wait.h"
#include "collectives/executor/prepared.h"
#include "collectives/executor/record.h"
#include "collectives/executor/uneven.h"
#include "transport/transport.h"

namespace tutti::executor {

/// Since the executor was made.
struct Counters {
  std::uint64_t calls = 0;
  std::uint64_t bytes = 0;  // moved over links: written to a peer's memory or read from it
  std::uint64_t signals = 0;
};

class StepTrace;

class HostExecutor {
 public:
  HostExecutor(transport::Transport& transport, Waiter& waiter, Health& health, int rank);

  /// The buffers of one call.
  struct Buffers {
    const void* input = nullptr;
    void* output = nullptr;
    double factor = 1.0;                   // premul_sum
    const UnevenPieces* uneven = nullptr;  // all_to_allv
  };

  /// Announces the call. Every call begins so, also one that has nothing to carry out; `handles`: peers may want to
  /// touch the buffers. Returns the call's number.
  std::uint64_t enter(const Announcement& announcement, const Buffers& buffers, bool handles);
  /// Must come before enter() when it is must_bound_run_ahead(). A call may end without having heard of every rank (a
  /// broadcast's root, a call of no elements), so a rank could run ahead without limit and overwrite, on its Board,
  /// records of calls in which others still are. This keeps it within 2 * kLookEvery calls of the last one.
  bool must_bound_run_ahead() const { return sequence_ % kLookEvery == kLookEvery - 1; }
  Status bound_run_ahead();
  /// What the ranks say of their buffers in this call.
  struct Agreement {
    bool registered = true;  // all of them are
    bool in_place = false;   // some rank's are
  };
  /// Waits until all ranks have entered the call. After enter() with handles.
  Result<Agreement> agree();
  /// Carries the plan out. After enter(); any failure is final for the communicator.
  Status run(const Prepared& prepared, const Buffers& buffers);
  /// A call that has no plan, among several hosts: tells all remote ranks of it, and waits until they have told too. No
  /// rank runs ahead then, so each finds the others' records where it looks for them. After enter().
  Status meet_remote_ranks();
  /// From memory that the wire has exposed into such of a remote rank: at `at` in its region.
  struct RemoteMove {
    int peer = -1;
    transport::Region to = 0;
    std::size_t at = 0;
    const std::byte* from = nullptr;
    std::size_t bytes = 0;
  };
  /// A call between memory that is no window (a GPU's), which no plan carries out: each of `peers`, remote ranks that
  /// name this one likewise, is put to when it has entered the call. Then all of theirs has come, and the own has been
  /// read. After enter().
  Status move_remote(std::span<const int> peers, std::span<const RemoteMove> moves);
  /// After a failure, before leave(): from now on the network reads no buffer of the call.
  void drop_net_puts() {
    if (net_puts_) net_puts_->drop();
  }
  /// After a failure, before leave(): takes the announced buffers back. Peers that have not opened them cannot any
  /// more; those that have are given a moment to get out of the call, since its buffers may be freed when it returns.
  void withdraw();
  void leave(bool well);

  std::uint64_t sequence() const { return sequence_; }
  const Counters& counters() const { return counters_; }
  /// What cross-memory access reads into; allocated when it is first needed.
  static constexpr std::size_t kBounceBytes = std::size_t{512} << 10;
  std::size_t bounce_bytes() const { return bounce_.capacity(); }
  void set_trace(StepTrace* trace) { trace_ = trace; }

 private:
  // Both directions between this rank and a peer, for one lane and channel.
  struct Link {
    transport::SignalCell* in = nullptr;
    transport::SignalCell* out = nullptr;
    const transport::Doze* doze = nullptr;  // of the peer
    bool remote = false;
    std::uint64_t seen = 0;
    std::uint64_t sent = 0;
  };
  struct Peer {
    std::uint64_t entered = 0;  // the latest call that it is known to have entered, with the same history
    std::uint64_t opened = 0;   // the latest call in which it was opened
    std::uint64_t told = 0;     // of a remote one: the latest call that this rank has told it of
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
    std::size_t next_scratch = 0;  // where the next large call's slots begin
    std::size_t next_published = 0;
  };
  // Where a lane stands.
  struct Cursor {
    int round = 0;
    std::size_t step = 0;
    // Until where land_ahead() has looked.
    int ahead_round = 0;
    std::size_t ahead_step = 0;
  };
  enum class Progress { done, blocked };

  Link& link(int peer, int lane, int channel) {
    return links_[static_cast<std::size_t>(sizes_.signal_index(peer, lane, channel))];
  }
  transport::ExpressCell& express_cell(int receiver, int sender, std::uint64_t call) const;
  Status gate(const Prepared& prepared);
  /// Waits until a remote `peer` has told that it has entered `needed` or a later call, and compares.
  Status see_entered_remote(int peer, std::uint64_t needed);
  /// The latest call from `needed` to this one of which a remote peer has told; 0: none.
  std::uint64_t announced_by(int peer, std::uint64_t needed) const;
  const transport::Board& board_of(int rank) const { return *transport_.window(rank).board; }
  bool has_entered(int peer, std::uint64_t call) const;
  /// That `peer`, which has entered `call`, has made the same calls as this rank until then.
  Status compare(int peer, std::uint64_t call);
  /// Waits until `peer` has entered `call`, and compares.
  Status see_entered(int peer, std::uint64_t call);
  /// After a plan that puts into scratch: that no rank in another call can have put something into this rank's.
  Status check_scratch_writers();
  /// Tells a remote rank of the call, with what goes to it next.
  Status announce_remote(int peer);
  /// Tells those that must know: the neighbours of this call, some of which may be near, and the last one's.
  /// `signalled`: by rank, whom an express call's signals tell; else empty.
  Status announce_remote(std::span<const int> neighbours, const std::vector<bool>& signalled);
  /// run(), but for what it leaves landing after a failure.
  Status run_steps(const Prepared& prepared, const Buffers& buffers);
  /// Where this call's slots begin in its half.
  void place(const Prepared& prepared);
  std::vector<std::byte*>& bases_of(const Prepared& prepared);
  Status open(int peer);
  Status walk_lanes(const Prepared& prepared, const Buffers& buffers);
  /// A put into the scratch of a remote rank.
  Status put_remote(const Prepared& prepared, const PreparedStep& step, const Buffers& buffers,
                    std::span<const std::size_t> offsets, std::size_t elements, int lane);
  Result<Progress> walk(const Prepared& prepared, const Buffers& buffers, int lane, Cursor& cursor, bool may_block);
  Status step(const Prepared& prepared, const PreparedStep& step, const Buffers& buffers, int round, int lane);
  /// The i-th piece of a range of some caller's buffer, in elements.
  static Share share_of(const Prepared& prepared, const plan::Range& range, int i, const Buffers& buffers);
  /// Calls pass(offsets, elements) for each run of bytes that the step moves in a round; the offsets are those of its
  /// sources and then its destinations, from their bases.
  template <class Pass>
  Status each_pass(const Prepared& prepared, const PreparedStep& step, const Buffers& buffers, int round, Pass&& pass);
  /// Before a wait: what is still to come, and will be copied to the output, may come there at once.
  Status land_ahead(const Prepared& prepared, const Buffers& buffers, int lane, Cursor& cursor);
  /// Whether that has happened to what was put to this slot, whose signal has come.
  bool has_landed(const void* slot);
  /// From now on nothing comes to the output by itself.
  void end_landings();
  static std::size_t elements_of(const Prepared& prepared, const PreparedStep& step, int i, const Buffers& buffers);
  Status pass(const Prepared& prepared, const PreparedStep& step, const Buffers& buffers,
              std::span<const std::size_t> offsets, std::size_t elements, int lane);
  Status pass_cma(const Prepared& prepared, const PreparedStep& step, const Buffers& buffers,
                  std::span<const std::size_t> offsets, std::size_t elements);
  void signal(int peer, int lane, int channel);
  Status signal_remote(int peer, int lane, int channel);
  // The same for plans whose data fits into the signal.
  void signal_express(const Prepared& prepared, int peer);
  Status signal_express_remote(const Prepared& prepared, int peer);
  Status wait_express(int peer);
  Status wait_express_remote(int peer);
  /// The condition of a wait in an express call, in which announce_pending() comes when it has not held for many looks.
  template <class Holds>
  auto announcing_pending(Holds holds) {
    return [this, holds, looks = 0]() mutable {
      if (holds()) return true;
      if (++looks == kLooksBeforeAnnouncing && net_ != nullptr) announce_pending();
      return false;
    };
  }
  static constexpr int kLooksBeforeAnnouncing = 500;  // a millisecond, or where it dozes between looks some more
  /// Tells those remote ranks of the call that its signals have not told yet.
  void announce_pending();
  /// True when it had come; with may_block, waits for it.
  Result<bool> wait(int peer, int lane, int channel, bool may_block);
  double factor_of(const PreparedRange& range, const Buffers& buffers) const;
  transport::Handle handle_of(const plan::Range& range) const;

  transport::Transport& transport_;
  transport::FarLinks* const net_;  // null: all ranks are on this host
  Waiter& waiter_;
  Health& health_;
  int rank_;
  int ranks_;
  const transport::WindowSizes sizes_;
  transport::Board* board_;
  std::uint64_t sequence_ = 0;
  std::uint64_t history_ = 0;  // of this rank's calls
  std::uint64_t tag_ = 0;
  std::vector<Link> links_;
  std::vector<Peer> peers_;
  Half halves_[2];
  bool warm_ = false;  // the transport is
  std::optional<NetPuts> net_puts_;
  std::vector<int> remote_neighbours_;  // in the last call
  std::uint64_t last_prepared_ = 0;     // the id of the last call's
  std::vector<int> left_out_;           // those of this call that its signals are to tell
  std::uint64_t unannounced_ = 0;       // express calls in a row
  // Where spaces begin (PreparedRange::base). By half; for express calls, where what a peer has published or put lies
  // in its express cell, by cell.
  std::vector<std::byte*> bases_[2];
  std::vector<std::vector<std::byte*>> express_bases_;
  std::vector<std::byte*> express_cells_;  // of each rank's window
  std::vector<std::byte> express_;         // what this rank publishes in an express call
  std::size_t origins_[4] = {};            // by space: where this call's slots begin
  std::vector<const void*> landings_;      // slots that messages may pass by on their way to the output
  std::vector<std::byte> bounce_;          // what cross-memory access reads into
  SlotStores slot_stores_;
  Counters counters_;
  StepTrace* trace_ = nullptr;
};

}  // namespace tutti::executor
