// Each rank sends its whole input to every peer and adds up what comes, in rank order: one step, for small messages on
// links that only put.
#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/common/phases.h"

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::RankBuilder;

Plan all_reduce_put_one_shot(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "put_one_shot");
  Builder b(request.collective, "put_one_shot", n, /*pieces=*/1);
  b.in_rank_order();
  for (int r = 0; r < n; ++r) {
    RankBuilder me = b.rank(r);
    for (const int peer : others_from(r, n)) me.send(peer, me.input(0));
    me.reduce_last({me.output(0)}, take_in_rank_order(me, n, 0));
    for (const int peer : others_from(r, n)) me.release(peer);
  }
  return b.finish();
}

}  // namespace tutti::algorithms
