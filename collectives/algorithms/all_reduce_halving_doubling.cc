// Recursive halving, then recursive doubling: 2 log2 n steps and the bytes of a ring. Where n is no power of two, the
// ranks beyond the largest power p first give their whole vector to a neighbour and get the sum from it at the end.
// Rabenseifner, "Optimization of collective reduction operations", ICCS 2004; Thakur, Rabenseifner, Gropp 2005.
#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/common/fold.h"
#include "collectives/algorithms/common/phases.h"

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::RankBuilder;

Plan all_reduce_halving_doubling(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "halving_doubling");
  const Folded folded(n);
  const int p = folded.participants;
  Builder b(request.collective, "halving_doubling", n, /*pieces=*/p);
  for (int r = 0; r < n; ++r) {
    RankBuilder me = b.rank(r);
    const int v = folded.participant(r);
    if (v < 0) {
      me.send(r + 1, me.input(0, p));
      me.recv(r + 1, me.output(0, p));
      continue;
    }
    bool own_is_sum = folded.serves_folded_rank(r);
    if (own_is_sum) me.recv_reduce(r - 1, me.output(0, p), me.input(0, p));

    int first = 0;  // the pieces that are still ours: first .. first + 2 * distance - 1
    for (int distance = p / 2; distance >= 1; distance /= 2) {
      const int partner = folded.rank_of(v ^ distance);
      const int keep = (v & distance) != 0 ? first + distance : first;
      const int give = (v & distance) != 0 ? first : first + distance;
      const auto own = [&](int piece) { return own_is_sum ? me.output(piece, distance) : me.input(piece, distance); };
      me.send(partner, own(give));
      me.recv_reduce(partner, me.output(keep, distance), own(keep), /*last=*/distance == 1);
      own_is_sum = true;
      first = keep;
    }
    for (int distance = 1; distance < p; distance *= 2) {
      const int partner = folded.rank_of(v ^ distance);
      me.send(partner, me.output(first, distance));
      me.recv(partner, me.output(first ^ distance, distance));
      first &= ~distance;
    }
    if (folded.serves_folded_rank(r)) me.send(r - 1, me.output(0, p));
  }
  return b.finish();
}

}  // namespace tutti::algorithms
