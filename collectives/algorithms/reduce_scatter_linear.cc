// Each rank sends block j to rank j, which adds up all contributions in rank order: one step on links that only put.
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/common/phases.h"

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::RankBuilder;

Plan reduce_scatter_linear(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "linear");
  Builder b(request.collective, "linear", n, /*pieces=*/n);
  b.in_rank_order();
  for (int r = 0; r < n; ++r) {
    RankBuilder me = b.rank(r);
    const std::vector<int> others = others_from(r, n);
    for (const int owner : others) me.send(owner, me.input(owner));
    me.reduce_last({me.output(r)}, take_in_rank_order(me, n, r));
    for (const int peer : others) me.release(peer);
  }
  return b.finish();
}

}  // namespace tutti::algorithms
