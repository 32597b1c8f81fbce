// The Plan: a collective algorithm as data. For each rank a short list of steps per lane; nothing here runs.
//
// Words
//   piece    a part of the user's buffers, numbered 0..pieces-1 across all ranks. The Layout (layout.h) turns a number
//            into bytes: all_reduce splits `count` elements evenly into pieces, all_gather has one piece per rank, ...
//            A buffer may hold only its rank's own piece (the input of all_gather).
//   round    the body of a plan runs `rounds` times; round r works on the r-th even share (the slice) of every piece.
//            The number of rounds is chosen when the plan is run, so one plan serves every message size.
//   slot     a place in scratch that holds one slice of one piece. Rounds alternate between two sets of slots.
//   signal   a counter from one rank to another, per lane and channel. The k-th wait on a link consumes the k-th signal
//            of that link. A signal is ordered behind everything its rank did before it on that link.
//   lane     an instruction stream of its own: a thread block on a GPU, usually one on a host.
//
// How: between calls scratch needs no closing barrier, since calls alternate between two halves of it. Before a rank
//   touches a half again it waits at the gate (executor/host/call_entry.h). Each rank it shares scratch with in the two
//   calls concerned must have entered the call in between. The verifier proves the plans with exactly this rule.
// Errors: invalid_argument from parse(), one sentence with the line number.
// Threads: plain data; any thread may read a plan that no thread changes.
// Limits: parse() takes at most 65536 ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "tutti/types.hpp"

namespace tutti::plan {

enum class Space : std::uint8_t {
  input,      // the caller's send buffer
  output,     // the caller's receive buffer
  scratch,    // inbound slots: written by a peer's put, read by their owner
  published,  // written by their owner, read by peers with load/store access
};

/// Whether it is one of the callers' buffers.
constexpr bool is_user(Space space) { return space == Space::input || space == Space::output; }

/// `count` consecutive pieces (input, output) or slots (scratch, published) in the memory of `rank`.
struct Range {
  Space space = Space::input;
  std::int32_t rank = 0;
  std::int32_t first = 0;
  std::int32_t count = 1;
  /// Returns the i-th piece of the range.
  Range part(int i) const { return {space, rank, first + i, 1}; }
  friend bool operator==(const Range&, const Range&) = default;
};

enum class StepKind : std::uint8_t {
  open,    // wait until `peer` has entered this call; from then on its input and output may be touched
  put,     // write `sources[0]` (own) to `destinations[0]` (the peer's); any link can
  copy,    // sources[0] -> every destination; ranges in peer memory need load/store (or cross-memory) links;
           // onto itself (in place) it does nothing
  reduce,  // every destination = sources combined in the order listed; ranges in peer memory as in copy
  signal,  // tell `peer` that all earlier steps of this lane have happened
  wait,    // until the next unconsumed signal of `peer` has come
};

/// Credits for slots matter only when a set of slots is used again, two rounds later.
enum class Guard : std::uint8_t {
  always,
  from_third_round,     // only in rounds r >= 2: before a slot is written again
  until_third_to_last,  // only in rounds r with r + 2 < rounds: the peer will wait for this credit
};

/// Signals for data and for credits are counted apart.
enum class Channel : std::uint8_t { data, credit };
inline constexpr int kChannels = 2;

struct Step {
  StepKind kind = StepKind::copy;
  Guard guard = Guard::always;
  Channel channel = Channel::data;
  bool last = false;  // on reduce: the last one of these elements, so avg divides here
  std::int32_t peer = -1;
  std::vector<Range> sources;
  std::vector<Range> destinations;
  friend bool operator==(const Step&, const Step&) = default;
};

struct Lane {
  std::vector<Step> steps;
  friend bool operator==(const Lane&, const Lane&) = default;
};

struct RankPlan {
  std::vector<Lane> lanes;
  friend bool operator==(const RankPlan&, const RankPlan&) = default;
};

struct Plan {
  Collective collective = Collective::all_reduce;
  std::string algorithm;  // the name in the algorithm table
  int ranks = 1;
  int pieces = 1;
  int root = 0;       // of rooted collectives, else 0
  int slots = 0;      // inbound slots per round, the largest over ranks
  int published = 0;  // published slots per round, the largest over ranks
  bool rank_order =
      false;  // every sum combines all ranks' inputs in rank order in one step: may serve deterministic mode
  std::vector<RankPlan> of_rank;
  friend bool operator==(const Plan&, const Plan&) = default;
};

/// The text form, one step a line; parse(print(p)) == p. Spaces separate words, `#` begins a comment line.
///
///   all_reduce ring ranks 2 pieces 2 root 0 slots 2 published 0 rank_order no
///   rank 0 lane 0
///     wait 1 credit from_third_round
///     put 1 input@0:1 -> scratch@1:0
///     signal 1 data
///     ...
///     reduce last scratch@0:0 input@0:0 -> output@0:0
///     copy scratch@0:4..5 -> output@0:2..3
///
/// A range is space@rank:first or space@rank:first..last. Bad text gives one sentence with the line number. parse()
/// takes memory in proportion to the text and does not check that the plan makes sense: verify() does.
std::string print(const Plan& plan);
Result<Plan> parse(const std::string& text);

/// Returns the other ranks whose scratch or signals `rank` touches, or that touch its own; sorted.
std::vector<int> peers_of(const Plan& plan, int rank);

/// True when a step of `rank` touches a peer's memory other than by put.
bool needs_load_store(const Plan& plan);

/// True when a step opens a peer (so that input and output of peers are touched directly).
bool opens_peers(const Plan& plan);

}  // namespace tutti::plan
