// Recursive halving: log2 n steps, and for powers of two the bytes of a ring. Else the ranks beyond the largest power p
// first give their whole input to a neighbour, which works for both. Sums in progress stay in the slots they came in,
// since the output has room for one block only. Thakur, Rabenseifner, Gropp, "Optimization of collective communication
// operations in MPICH", 2005.
#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/common/fold.h"
#include "collectives/algorithms/common/phases.h"

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::Range;
using plan::RankBuilder;

Plan reduce_scatter_halving(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "halving");
  const Folded folded(n);
  const int p = folded.participants;
  Builder b(request.collective, "halving", n, /*pieces=*/n);
  for (int r = 0; r < n; ++r) {
    RankBuilder me = b.rank(r);
    const int v = folded.participant(r);
    if (v < 0) {
      me.send(r + 1, me.input(0, n));
      me.recv(r + 1, me.output(r));
      continue;
    }
    Range own = me.input(0, n);  // our sum so far of pieces own_first .. own_first + own.count - 1
    int own_first = 0;
    int holder = -1;  // the peer in whose slots `own` lies
    if (folded.serves_folded_rank(r)) {
      const Range slots = me.take(r - 1, n);
      me.reduce({slots}, {slots, own});
      own = slots;
      holder = r - 1;
    }
    int low = 0;  // participants low .. low + 2 * distance - 1 share what we hold
    for (int distance = p / 2; distance >= 1; distance /= 2) {
      const int partner = folded.rank_of(v ^ distance);
      const int upper = folded.first_piece(low + distance);
      const int end = folded.first_piece(low + 2 * distance);
      const Range lower_half = {own.space, own.rank, own.first, upper - own_first};
      const Range upper_half = {own.space, own.rank, own.first + upper - own_first, end - upper};
      const bool take_upper = (v & distance) != 0;
      const Range keep = take_upper ? upper_half : lower_half;
      me.send(partner, take_upper ? lower_half : upper_half);
      const Range slots = me.take(partner, keep.count);
      if (distance == 1) {
        // Left: our own block, behind that of the rank folded into ours.
        const auto last = [](Range range) { return Range{range.space, range.rank, range.first + range.count - 1, 1}; };
        me.reduce_last({me.output(r)}, {last(slots), last(keep)});
        if (folded.serves_folded_rank(r)) {
          const Range theirs = {slots.space, slots.rank, slots.first, 1};
          me.reduce_last({theirs}, {theirs, {keep.space, keep.rank, keep.first, 1}});
          me.send(r - 1, theirs);
        }
        me.release(partner);
      } else {
        me.reduce({slots}, {slots, keep});
      }
      if (holder >= 0) me.release(holder);
      own = slots;
      own_first = take_upper ? upper : own_first;
      holder = partner;
      if (take_upper) low += distance;
    }
  }
  return b.finish();
}

}  // namespace tutti::algorithms
