// Ring all-reduce: a ring reduce-scatter followed by a ring all-gather. 2(n-1) steps, 2(n-1)/n of the data per rank,
// the least that is possible. Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations", 2009.
#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/common/phases.h"

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::RankBuilder;

Plan all_reduce_ring(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "ring");
  Builder b(request.collective, "ring", n, /*pieces=*/n);
  for (int r = 0; r < n; ++r) {
    RankBuilder me = b.rank(r);
    ring_reduce_scatter(me, all_ranks(r, n));
    ring_all_gather(me, all_ranks(r, n));
  }
  return b.finish();
}

}  // namespace tutti::algorithms
