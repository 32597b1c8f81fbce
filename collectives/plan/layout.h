// From piece numbers to elements: where a piece lies in the caller's input and output, for each collective.
//
//   collective       pieces    input                          output
//   all_reduce       any P     even_share(count, P)           even_share(count, P)
//   reduce, broadcast any P    even_share(count, P)           even_share(count, P)
//   reduce_scatter   n         n blocks of `count`            only the rank's piece, at 0
//   all_gather       n         only the rank's piece, at 0    n blocks of `count`
//   gather           n         only the rank's piece, at 0    n blocks of `count` (root)
//   scatter          n         n blocks of `count` (root)     only the rank's piece, at 0
//   all_to_all       n         n blocks: piece j goes to j    n blocks: piece i came from i
//   barrier          1         nothing                        nothing
// Where there are n pieces there may be k times n, so that lanes have parts of their own (rename.h): then piece p is
// the (p / n)-th even share of block p % n. In place, piece p of the input and piece p of the output are the same bytes
// (where both exist).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/even_share.h"
#include "collectives/plan/plan.h"

namespace tutti::plan {

enum class Placement : std::uint8_t { split, blocks, own };

struct Placements {
  Placement input;
  Placement output;
};

Placements placements_of(Collective collective);

/// Returns the rank whose block a piece is, or is a part of. Without meaning where the message is split.
inline int block_of(const Plan& plan, int piece) { return piece % plan.ranks; }

/// Whether `rank` has piece `piece` in its input or output (of rooted collectives some ranks have none, and a placement
/// `own` has only what is of the rank's own block). REQUIRES: space is input or output.
bool holds(const Plan& plan, Space space, int rank, int piece);

/// The slice of a piece in round `round` of `rounds`, in elements from the piece's start.
inline Share slice(std::size_t piece_size, int rounds, int round) {
  return even_share(piece_size, static_cast<std::size_t>(rounds), static_cast<std::size_t>(round));
}

}  // namespace tutti::plan
