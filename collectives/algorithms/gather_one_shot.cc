// Each rank publishes its block, the root copies them all.
#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/common/phases.h"

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::RankBuilder;

Plan gather_one_shot(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "one_shot");
  Builder b(request.collective, "one_shot", n, /*pieces=*/n, request.root);
  const int root = request.root;
  for (int r = 0; r < n; ++r) {
    RankBuilder me = b.rank(r);
    if (r != root) {
      me.reclaim(root);
      me.copy(me.published(r), me.input(r));
      me.signal(root);
      continue;
    }
    me.copy(me.output(r), me.input(r));
    for (const int peer : others_from(r, n)) {
      me.wait(peer);
      me.copy(me.output(peer), me.published(peer));
      me.release(peer);
    }
  }
  return b.finish();
}

}  // namespace tutti::algorithms
