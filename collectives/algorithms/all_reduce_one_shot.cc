// Each rank publishes its input and adds up those of all: one exchange of signals, the least possible latency, and n
// times the work. No credits: a rank that publishes in round r + 2 has waited for every peer's signal of round r + 1,
// which a peer gives only when it is done with round r.
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/common/phases.h"

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::Range;
using plan::RankBuilder;

Plan all_reduce_one_shot(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "one_shot");
  Builder b(request.collective, "one_shot", n, /*pieces=*/1);
  b.in_rank_order();
  for (int r = 0; r < n; ++r) {
    RankBuilder me = b.rank(r);
    me.copy(me.published(r), me.input(0));
    meet_all(me, n);
    std::vector<Range> inputs;
    for (int peer = 0; peer < n; ++peer) inputs.push_back(peer == r ? me.input(0) : me.published(peer));
    me.reduce_last({me.output(0)}, inputs);
  }
  return b.finish();
}

}  // namespace tutti::algorithms
