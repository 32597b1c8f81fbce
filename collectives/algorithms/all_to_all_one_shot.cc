// Each rank publishes all its blocks and copies its own from each peer. In place is safe: the input is read only before
// the output is written. No credits are needed, for the reason given in all_reduce_one_shot.cc.
#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/common/phases.h"

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::RankBuilder;

Plan all_to_all_one_shot(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "one_shot");
  Builder b(request.collective, "one_shot", n, /*pieces=*/n);
  for (int r = 0; r < n; ++r) {
    RankBuilder me = b.rank(r);
    me.copy(me.published(r, 0, n), me.input(0, n));
    me.copy(me.output(r), me.input(r));
    meet_all(me, n);
    for (const int peer : others_from(r, n)) me.copy(me.output(peer), me.published(peer, r));
  }
  return b.finish();
}

}  // namespace tutti::algorithms
