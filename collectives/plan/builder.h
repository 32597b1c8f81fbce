// How an algorithm author writes a plan: in verbs. The builder turns them into steps and adds the slots, signals and
// credits that they need. Write each rank's program once, as on the textbook page:
//
//   Builder b(Collective::all_gather, "ring", n, /*pieces=*/n);
//   for (int r = 0; r < n; ++r) {
//     RankBuilder me = b.rank(r);
//     me.copy(me.output(r), me.input(r));
//     for (int s = 0; s < n - 1; ++s) {
//       me.send((r + 1) % n, me.output((r - s + n) % n));
//       me.recv((r - 1 + n) % n, me.output((r - s - 1 + n) % n));
//     }
//   }
//   return b.finish();
//
// How: the m-th send from i to j meets the m-th recv on j from i. finish() numbers the slots.
// Errors: none. Sends and receives that do not pair up are an author's mistake: finish() then aborts the process.
// Threads: one at a time.
// Limits: a link's key has 24 bits for a rank and 16 for a lane.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "collectives/plan/plan.h"

namespace tutti::plan {

class RankBuilder;

class Builder {
 public:
  Builder(Collective collective, std::string algorithm, int ranks, int pieces, int root = 0);
  RankBuilder rank(int r);
  /// Marks that every reduction combines all ranks in rank order (deterministic mode).
  void in_rank_order() { plan_.rank_order = true; }
  /// Pairs sends with receives, numbers the slots, and hands the plan over.
  Plan finish();

 private:
  friend class RankBuilder;

  /// One direction of one pair of ranks in one lane, as its two ends have written it so far. finish() compares the
  /// ends.
  struct Link {
    std::vector<std::int32_t> sent, received;                // pieces of each message
    std::vector<bool> data_signals, data_waits;              // in order; true: of a message, false: a bare signal
    std::vector<std::int32_t> credit_waits, credit_signals;  // in order; the message, or -1 for published slots
    std::int32_t released = 0;                               // messages that the receiver has given back
  };
  struct Message {
    std::uint64_t link;
    std::int32_t number;
    std::int32_t offset;  // the slot among those of the message
  };
  static std::uint64_t key(int from, int to, int lane);
  Link& link(int from, int to, int lane) { return links_[key(from, to, lane)]; }
  /// A range of the receiver's scratch that names its message until finish() knows the slots. Parts of it (first + k)
  /// are named too.
  Range slots_of(int from, int to, int lane, std::int32_t number, int count);
  void check_ends() const;
  void number_slots();

  Plan plan_;
  std::unordered_map<std::uint64_t, Link> links_;
  std::vector<Message> messages_;  // what the scratch ranges of plan_ index until finish()
};

/// The verbs of one rank. All verbs append to the current lane.
class RankBuilder {
 public:
  int index() const { return rank_; }
  void lane(int l);  // following verbs go to lane l

  Range input(int piece, int count = 1) const { return {Space::input, rank_, piece, count}; }
  Range output(int piece, int count = 1) const { return {Space::output, rank_, piece, count}; }
  Range peer_input(int peer, int piece, int count = 1) const { return {Space::input, peer, piece, count}; }
  Range peer_output(int peer, int piece, int count = 1) const { return {Space::output, peer, piece, count}; }
  /// Slot `slot` that `rank` has published (load/store links only).
  Range published(int rank, int slot = 0, int count = 1) const { return {Space::published, rank, slot, count}; }

  // On own memory, or directly on a peer's (after open).
  void copy(Range dst, Range src) { copy(std::vector<Range>{dst}, src); }
  void copy(std::vector<Range> dsts, Range src);
  void reduce(std::vector<Range> dsts, std::vector<Range> srcs);
  /// The last reduction of a piece: also divides when the op is avg.
  void reduce_last(std::vector<Range> dsts, std::vector<Range> srcs);

  // Through slots.
  void send(int peer, Range src) { send(peer, std::vector<Range>{src}); }
  void recv(int peer, Range dst) { recv(peer, std::vector<Range>{dst}); }
  /// Send and receive ranges that do not lie one behind the other, as one message.
  void send(int peer, const std::vector<Range>& srcs);
  void recv(int peer, const std::vector<Range>& dsts);
  /// dst = received + own (operands in this order), `last` as in reduce_last.
  void recv_reduce(int peer, Range dst, Range own, bool last = false);
  /// Sends received + own on to `to`, keeping nothing.
  void recv_reduce_send(int from, Range own, int to);
  /// Keeps what came in dst and sends it on.
  void recv_copy_send(int from, Range dst, int to);
  /// Waits for peer's next message and names its slots, for a reduction of several received pieces at once. The caller
  /// uses the range as a source and then calls release(peer) once. Messages of a peer are given back in the order in
  /// which they came, whatever verb received them.
  Range take(int peer, int count = 1);
  void release(int peer);

  // Through published slots: the owner reclaims a slot from each reader before it writes it, publishes, signals; the
  // reader waits, reads, releases. Without reclaim and release where something else orders the rounds.
  void reclaim(int reader);

  // Direct access.
  void open(int peer);
  void signal(int peer);
  void wait(int peer);

 private:
  friend class Builder;
  RankBuilder(Builder& builder, int rank) : builder_(&builder), rank_(rank) {}
  Step& add(Step step);

  Builder* builder_;
  int rank_;
  int lane_ = 0;
};

}  // namespace tutti::plan
