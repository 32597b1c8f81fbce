// Each rank publishes all its blocks and adds up its own from all ranks: one exchange of signals. No credits are
// needed, for the reason given in all_reduce_one_shot.cc.
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/common/phases.h"

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::Range;
using plan::RankBuilder;

Plan reduce_scatter_one_shot(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "one_shot");
  Builder b(request.collective, "one_shot", n, /*pieces=*/n);
  b.in_rank_order();
  for (int r = 0; r < n; ++r) {
    RankBuilder me = b.rank(r);
    me.copy(me.published(r, 0, n), me.input(0, n));
    meet_all(me, n);
    std::vector<Range> inputs;
    for (int peer = 0; peer < n; ++peer) inputs.push_back(peer == r ? me.input(r) : me.published(peer, r));
    me.reduce_last({me.output(r)}, inputs);
  }
  return b.finish();
}

}  // namespace tutti::algorithms
