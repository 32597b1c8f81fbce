// Each rank publishes, the root adds up in rank order.
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/common/phases.h"

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::Range;
using plan::RankBuilder;

Plan reduce_one_shot(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "one_shot");
  Builder b(request.collective, "one_shot", n, /*pieces=*/1, request.root);
  b.in_rank_order();
  const int root = request.root;
  for (int r = 0; r < n; ++r) {
    RankBuilder me = b.rank(r);
    if (r != root) {
      me.reclaim(root);
      me.copy(me.published(r), me.input(0));
      me.signal(root);
      continue;
    }
    const std::vector<int> others = others_from(r, n);
    for (const int peer : others) me.wait(peer);
    std::vector<Range> inputs;
    for (int peer = 0; peer < n; ++peer) inputs.push_back(peer == r ? me.input(0) : me.published(peer));
    me.reduce_last({me.output(0)}, inputs);
    for (const int peer : others) me.release(peer);
  }
  return b.finish();
}

}  // namespace tutti::algorithms
