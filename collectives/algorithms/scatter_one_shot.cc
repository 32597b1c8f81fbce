// The root publishes all blocks, the other ranks copy their own.
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/common/phases.h"

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::RankBuilder;

Plan scatter_one_shot(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "one_shot");
  Builder b(request.collective, "one_shot", n, /*pieces=*/n, request.root);
  const int root = request.root;
  for (int r = 0; r < n; ++r) {
    RankBuilder me = b.rank(r);
    if (r != root) {
      me.wait(root);
      me.copy(me.output(r), me.published(root, r));
      me.release(root);
      continue;
    }
    const std::vector<int> readers = others_from(r, n);
    for (const int reader : readers) me.reclaim(reader);
    me.copy(me.published(r, 0, n), me.input(0, n));
    for (const int reader : readers) me.signal(reader);
    me.copy(me.output(r), me.input(r));
  }
  return b.finish();
}

}  // namespace tutti::algorithms
