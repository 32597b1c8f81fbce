// Ring all-gather: n-1 steps, every block passes each link of the ring but one. Patarasuk and Yuan 2009 (phases.h).
#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/common/phases.h"

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::RankBuilder;

Plan all_gather_ring(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "ring");
  Builder b(request.collective, "ring", n, /*pieces=*/n);
  for (int r = 0; r < n; ++r) {
    RankBuilder me = b.rank(r);
    me.copy(me.output(r), me.input(r));
    ring_all_gather(me, all_ranks(r, n));
  }
  return b.finish();
}

}  // namespace tutti::algorithms
