// The root publishes, the other ranks copy.
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/common/phases.h"

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::RankBuilder;

Plan broadcast_one_shot(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "one_shot");
  Builder b(request.collective, "one_shot", n, /*pieces=*/1, request.root);
  const int root = request.root;
  for (int r = 0; r < n; ++r) {
    RankBuilder me = b.rank(r);
    if (r != root) {
      me.wait(root);
      me.copy(me.output(0), me.published(root));
      me.release(root);
      continue;
    }
    const std::vector<int> readers = others_from(r, n);
    for (const int reader : readers) me.reclaim(reader);
    me.copy({me.published(r), me.output(0)}, me.input(0));
    for (const int reader : readers) me.signal(reader);
  }
  return b.finish();
}

}  // namespace tutti::algorithms
