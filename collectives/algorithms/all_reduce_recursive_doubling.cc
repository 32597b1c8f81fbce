// Each rank adds up its partner's vector and its own, then again with a partner twice as far: log2 n steps of the
// whole vector each, so for small messages. Where n is no power of two the ranks beyond are folded (fold.h).
// Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", 2005.
#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/common/fold.h"
#include "collectives/algorithms/common/phases.h"

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::RankBuilder;

Plan all_reduce_recursive_doubling(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "recursive_doubling");
  const Folded folded(n);
  Builder b(request.collective, "recursive_doubling", n, /*pieces=*/1);
  for (int r = 0; r < n; ++r) {
    RankBuilder me = b.rank(r);
    const int v = folded.participant(r);
    if (v < 0) {
      me.send(r + 1, me.input(0));
      me.recv(r + 1, me.output(0));
      continue;
    }
    bool own_is_sum = folded.serves_folded_rank(r);
    if (own_is_sum) me.recv_reduce(r - 1, me.output(0), me.input(0));
    for (int distance = 1; distance < folded.participants; distance *= 2) {
      const int partner = folded.rank_of(v ^ distance);
      const auto own = own_is_sum ? me.output(0) : me.input(0);
      me.send(partner, own);
      me.recv_reduce(partner, me.output(0), own, /*last=*/2 * distance == folded.participants);
      own_is_sum = true;
    }
    if (folded.serves_folded_rank(r)) me.send(r - 1, me.output(0));
  }
  return b.finish();
}

}  // namespace tutti::algorithms
