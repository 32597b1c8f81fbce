// Each rank sends its input to the root, which adds up in rank order: one step, by puts alone. Deterministic mode uses
// it on links without load and store.
#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/common/phases.h"

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::RankBuilder;

Plan reduce_linear(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "linear");
  Builder b(request.collective, "linear", n, /*pieces=*/1, request.root);
  b.in_rank_order();
  for (int r = 0; r < n; ++r) {
    RankBuilder me = b.rank(r);
    if (r != request.root) {
      me.send(request.root, me.input(0));
      continue;
    }
    me.reduce_last({me.output(0)}, take_in_rank_order(me, n, 0));
    for (const int peer : others_from(r, n)) me.release(peer);
  }
  return b.finish();
}

}  // namespace tutti::algorithms
