// Each rank publishes its block and copies those of all others: one exchange of signals. No credits are needed, for the
// reason given in all_reduce_one_shot.cc.
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/common/phases.h"

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::RankBuilder;

Plan all_gather_one_shot(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "one_shot");
  Builder b(request.collective, "one_shot", n, /*pieces=*/n);
  for (int r = 0; r < n; ++r) {
    RankBuilder me = b.rank(r);
    const std::vector<int> others = others_from(r, n);
    me.copy(me.published(r), me.input(r));
    for (const int peer : others) me.signal(peer);
    me.copy(me.output(r), me.input(r));  // while the signals travel
    for (const int peer : others) me.wait(peer);
    for (const int peer : others) me.copy(me.output(peer), me.published(peer));
  }
  return b.finish();
}

}  // namespace tutti::algorithms
