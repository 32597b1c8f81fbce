// Ring reduce-scatter: n-1 steps, (n-1)/n of the data per rank. Patarasuk and Yuan 2009 (phases.h).
#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/common/phases.h"

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::RankBuilder;

Plan reduce_scatter_ring(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "ring");
  Builder b(request.collective, "ring", n, /*pieces=*/n);
  for (int r = 0; r < n; ++r) {
    RankBuilder me = b.rank(r);
    ring_reduce_scatter(me, all_ranks(r, n));
  }
  return b.finish();
}

}  // namespace tutti::algorithms
