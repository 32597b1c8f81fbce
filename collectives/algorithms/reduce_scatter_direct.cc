// Rank r reads block r of every rank's input and adds them up, in one pass over memory.
#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/common/phases.h"

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::RankBuilder;

Plan reduce_scatter_direct(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "direct");
  Builder b(request.collective, "direct", n, /*pieces=*/n);
  b.in_rank_order();
  for (int r = 0; r < n; ++r) {
    RankBuilder me = b.rank(r);
    open_all(me, n);
    me.reduce_last({me.output(r)}, inputs_in_rank_order(me, n, r));
    meet_all(me, n);
  }
  return b.finish();
}

}  // namespace tutti::algorithms
