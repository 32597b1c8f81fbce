// A plan made ready for one rank and one kind of call: its steps in flat arrays, its pieces as byte offsets. The plan
// cache holds these.
// How: prepare() decides where every piece and slot lies. In a single round a walk needs no search, no division and no
//   allocation.
// Errors: memory_limit, when scratch cannot hold a single element per slot.
// Threads: immutable once its maker has handed it on; then any thread may read it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/even_share.h"
#include "base/status.h"
#include "collectives/plan/layout.h"
#include "collectives/plan/plan.h"
#include "transport/transport.h"

namespace tutti::executor {

/// Everything of a call that decides how its plan is laid out.
struct Shape {
  Collective collective = Collective::barrier;
  DataType type = DataType::u8;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  std::size_t count = 0;   // all_to_allv: no piece has more
  std::size_t stride = 0;  // from a block to the next one in a buffer of blocks, in elements; 0: they touch
};

/// The executor's table of base addresses has a row for each plan::Space, and one more: what has come in the express
/// cells, by sender.
inline constexpr int kInbox = 4;
inline constexpr int kBaseRows = 5;
constexpr std::size_t base_index(int row, int ranks, int rank) { return static_cast<std::size_t>(row * ranks + rank); }
constexpr std::size_t base_index(plan::Space space, int ranks, int rank) {
  return base_index(static_cast<int>(space), ranks, rank);
}

struct PreparedRange {
  plan::Range range;
  std::uint32_t base = 0;  // index in that table
  std::size_t offset = 0;  // from that base, in round 0
  bool in_peer_memory = false;
  bool raw_input = false;  // the caller's own numbers: premul_sum multiplies them
};

struct PreparedStep {
  plan::StepKind kind{};
  plan::Guard guard{};
  std::uint8_t channel = 0;
  bool last = false;
  std::int32_t peer = -1;
  std::int32_t piece = 0;  // the data moved: these pieces
  std::int32_t pieces = 0;
  std::size_t elements = 0;  // of all pieces
  bool one_pass = true;      // in a single round the pieces lie one behind the other on all sides (slots do not), and
                             // where they lie is known (of an all_to_allv it is not)
  // What such a step copies may come to its destination earlier, and not to its slot at all: from step `redirects_from`
  // of the lane on nothing else touches that destination. `redirects_from_in_place`: where the output is the input's
  // memory.
  std::uint32_t redirects_from = kNever, redirects_from_in_place = kNever;
  std::int32_t sender = -1;  // whose message that is
  static constexpr std::uint32_t kNever = ~std::uint32_t{0};
  std::uint32_t sources = 0, source_count = 0;            // in Prepared::ranges
  std::uint32_t destinations = 0, destination_count = 0;  // in Prepared::ranges
};

/// The room of a rank's window, and how the plan's lanes run.
struct PlanLimits {
  std::size_t scratch_half = 0;
  std::size_t published_half = 0;
  std::size_t express_bytes = 0;                     // of one express cell; 0: there are none
  std::size_t slice_bytes = std::size_t{128} << 10;  // the most of a piece that passes through a slot in a round. On a
                                                     // host it should still be in the second-level cache when the peer
                                                     // takes it
  int strips = 1;                                    // so many walkers share the work of a lane, each with its own
                                                     // part of every slot and of every cell (executor/cuda)
};
PlanLimits limits_of(const transport::WindowSizes& sizes);

/// How many bytes of a slot one strip needs, where all together need `bytes`. Strips begin at multiples of kStripUnit.
inline constexpr std::size_t kStripUnit = 16;
constexpr std::size_t strip_bytes(std::size_t bytes, int strips) {
  const std::size_t units = largest_share(bytes, kStripUnit);
  return round_up(largest_share(units, static_cast<std::size_t>(strips)) * kStripUnit, transport::kCacheLine);
}

/// The slots of one kind (scratch or published). Rounds use one set after another, as many sets as fit into the half.
struct Slots {
  int count = 0;          // of a set: what the plan says
  std::size_t bytes = 0;  // of one slot
  int sets = 1;           // more than one only when there are several rounds
  std::size_t total() const { return static_cast<std::size_t>(sets * count) * bytes; }
  /// Returns where slot `number` is in a round, from where the call's slots begin.
  std::size_t offset(int number, int round) const {
    return static_cast<std::size_t>(round % sets * count + number) * bytes;
  }
};

/// In an express call: the bytes that go with each signal, published or put, and the peers that this rank signals.
struct ExpressData {
  std::size_t published = 0;
  std::size_t put = 0;          // at most
  std::vector<bool> signalled;  // by rank
};

struct Prepared {
  std::shared_ptr<const plan::Plan> plan;
  Shape shape;
  int rank = 0;
  int ranks = 1;
  int rounds = 1;
  int strips = 1;           // of each lane
  std::size_t element = 1;  // bytes
  Slots scratch;
  Slots published;
  bool streaming = false;  // non-temporal stores for what goes to the caller's buffers
  bool opens = false;      // peers touch each other's input or output
  bool express = false;    // what is published or put fits into the signals (ExpressCell)
  ExpressData express_data;
  std::vector<std::vector<PreparedStep>> lanes;
  std::vector<PreparedRange> ranges;
  std::vector<int> peers;
  std::uint64_t id = 0;         // never used twice in a process
  std::uint32_t algorithm = 0;  // row of the algorithm table
  std::string reason;           // why the planner chose it

  /// Bytes of memory that this object takes, estimated.
  std::size_t memory() const;
  /// Elements of a piece, and where it begins in a buffer that is placed so.
  std::size_t piece_elements(int piece) const;
  std::size_t piece_begin(plan::Placement placement, int piece) const;
  plan::Placement placement_of(plan::Space space) const;
  const Slots& slots_of(plan::Space space) const { return space == plan::Space::scratch ? scratch : published; }

  /// Returns the part of the message, or of its block, that a piece is.
  std::size_t part_of(int piece) const;

  std::vector<std::size_t> begins;  // of these parts, with the end behind the last
};

/// `streaming_above`: bytes of the larger buffer. REQUIRES: the plan is for `rank`'s communicator size. Errors:
/// memory_limit when scratch cannot hold a single element per slot.
Result<std::shared_ptr<Prepared>> prepare(const std::shared_ptr<const plan::Plan>& plan, int rank, const Shape& shape,
                                          const PlanLimits& limits, std::size_t streaming_above);
inline Result<std::shared_ptr<Prepared>> prepare(const std::shared_ptr<const plan::Plan>& plan, int rank,
                                                 const Shape& shape, const transport::WindowSizes& sizes,
                                                 std::size_t streaming_above) {
  return prepare(plan, rank, shape, limits_of(sizes), streaming_above);
}

}  // namespace tutti::executor
