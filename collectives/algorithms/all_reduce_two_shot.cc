// Direct two-shot: rank i reads piece i of every rank's input, adds them up and writes the sum into piece i of every
// rank's output, in one pass over memory. In place is safe, since only rank i touches any copy of piece i.
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/common/phases.h"

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::Range;
using plan::RankBuilder;

Plan all_reduce_two_shot(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "two_shot");
  Builder b(request.collective, "two_shot", n, /*pieces=*/n);
  b.in_rank_order();
  for (int r = 0; r < n; ++r) {
    RankBuilder me = b.rank(r);
    open_all(me, n);
    std::vector<Range> outputs = {me.output(r)};
    for (const int peer : others_from(r, n)) outputs.push_back(me.peer_output(peer, r));
    me.reduce_last(outputs, inputs_in_rank_order(me, n, r));
    meet_all(me, n);
  }
  return b.finish();
}

}  // namespace tutti::algorithms
