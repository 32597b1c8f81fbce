// A plan made ready for a GPU: executor::Prepared as one block of plain words, which a kernel reads from device memory.
//
//   TUTTI_ASSIGN(const auto prepared, prepare_for_device(plan, rank, shape, limits_of(sizes, strips)));
//   const std::vector<std::byte> program = flatten(*prepared);   // upload as it is: it holds no pointers
//
// How: a walker (a thread block) runs one strip of one lane: all steps of the lane, each on its own share of
//   every slice. So a plan of one lane fills as many blocks as wanted, with signals of their own. It needs no new
//   proof: each strip is the proven plan on fewer elements. Walker w is strip w % strips of lane w / strips.
// Express: where a plan's data fits into its signals (Prepared::express), puts and published slots become lines that
//   carry data and flag together (transport/device_window.h). These are the ranges `depart` and `arrived`.
// Errors: those of prepare(); unsupported, when a step touches more than kMostRanges ranges.
// Threads: immutable. Host and device include this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/even_share.h"
#include "tutti/types.hpp"

#if !defined(__CUDA_ARCH__) && !defined(__CUDACC__)
#include <memory>
#include <vector>

#include "collectives/executor/prepared.h"
#include "collectives/executor/uneven.h"
#include "transport/device_window.h"
#endif

namespace tutti::executor::cuda {

/// The memory that a range lies in, as the walker sees it.
enum class Place : std::uint8_t {
  input,        // of this rank
  output,       // of this rank
  peer_input,   // of an opened rank
  peer_output,  // of an opened rank
  scratch,      // slots in the window of `rank`
  published,    // slots in the window of `rank`
  arrived,      // this rank's express cell from `rank`
  depart,       // the express cell of this rank at `rank`
};

enum class Verb : std::uint8_t {
  open,    // until every peer of the list has entered the call; then look up their buffers
  move,    // sources[0] to every destination
  reduce,  // all sources to every destination
  signal,  // tell every peer of the list
  wait,    // for every peer of the list
  flag,    // express, where no data goes along: a line without data to every peer
  expect,  // the same at the other end
  check,   // express: that the peers' data, which will be waited for line by line, is of the same call
};

struct ProgramRange {
  Place place = Place::input;
  bool raw_input = false;  // the caller's own numbers: premul_sum multiplies them
  std::int16_t rank = 0;
  std::int32_t slot = 0;      // scratch, published: the first
  std::uint32_t offsets = 0;  // input, output: in numbers: where each piece begins, in elements
};

struct ProgramStep {
  Verb verb = Verb::move;
  std::uint8_t guard = 0;    // plan::Guard
  std::uint8_t channel = 0;  // plan::Channel
  bool last = false;         // of a reduction: avg divides here
  std::uint16_t sources = 0;
  std::uint16_t destinations = 0;
  std::uint32_t ranges = 0;  // sources, then destinations
  std::int32_t pieces = 0;
  std::uint32_t sizes = 0;  // in numbers: the elements of each piece
  std::uint32_t peers = 0;  // in peers
  std::uint32_t peer_count = 0;
};

struct ProgramLane {
  std::uint32_t steps = 0;  // the first
  std::uint32_t step_count = 0;
};

struct ProgramSlots {
  std::uint64_t bytes = 0;  // of one slot
  std::uint64_t strip_bytes = 0;
  std::int32_t count = 0;
  std::int32_t sets = 1;
};

/// The head of the block; the arrays begin at so many bytes from it.
struct Program {
  std::uint32_t bytes = 0;  // of the block
  std::int32_t ranks = 1;
  std::int32_t rank = 0;
  std::int32_t lanes = 1;
  std::int32_t strips = 1;
  std::int32_t rounds = 1;
  std::uint32_t element = 1;  // bytes
  DataType type = DataType::u8;
  ReduceOp op = ReduceOp::sum;
  bool express = false;
  bool reduces = false;                // some step does
  std::uint64_t cell_strip_bytes = 0;  // express: of data, for each strip
  ProgramSlots scratch;
  ProgramSlots published;
  std::uint32_t lanes_at = 0;
  std::uint32_t steps_at = 0;
  std::uint32_t ranges_at = 0;
  std::uint32_t peers_at = 0;
  std::uint32_t numbers_at = 0;
};

/// The most ranges of a step: what fits into a block's shared memory.
inline constexpr int kMostRanges = 132;

/// Round r's part of a piece, and strip s's part of that, in elements. Both begin at multiples of 16 bytes from the
/// piece's start (as kStripUnit), so that a strip's vectors are never another one's too.
struct Part {
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
};
constexpr Part part_of(std::uint64_t elements, std::uint32_t element, int rounds, int round, int strips, int strip,
                       std::uint64_t* offset_in_slice) {
  const std::uint64_t per_unit = 16 / element;
  const std::uint64_t units = (elements + per_unit - 1) / per_unit;
  const Share slice = even_share(units, static_cast<std::size_t>(rounds), static_cast<std::size_t>(round));
  const Share strip_units = even_share(slice.size, static_cast<std::size_t>(strips), static_cast<std::size_t>(strip));
  const std::uint64_t begin = (slice.offset + strip_units.offset) * per_unit;
  const std::uint64_t end = begin + strip_units.size * per_unit;
  *offset_in_slice = strip_units.offset * per_unit;
  return {begin, begin >= elements ? 0 : (end > elements ? elements : end) - begin};
}

#if !defined(__CUDA_ARCH__) && !defined(__CUDACC__)

/// Returns the limits of a device window when `strips` walkers share each lane.
PlanLimits limits_of(const transport::DeviceWindowSizes& sizes, int strips, std::size_t slice_bytes);

/// prepare(), without express cells where the walker could not carry it out with them. Errors: as prepare();
/// unsupported (a step touches more ranges than a walker holds).
Result<std::shared_ptr<Prepared>> prepare_for_device(const std::shared_ptr<const plan::Plan>& plan, int rank,
                                                     const Shape& shape, const PlanLimits& limits);

/// `uneven`: of an all_to_allv, whose program serves these pieces only.
std::vector<std::byte> flatten(const Prepared& prepared, const UnevenPieces* uneven = nullptr);

/// Prints one line for each step, for people and tests.
std::string print(const Program& program);

#endif

}  // namespace tutti::executor::cuda
