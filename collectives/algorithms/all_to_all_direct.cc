// Each rank copies its block out of every peer's input. Not in place: a peer would read what this rank has already
// overwritten.
#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/common/phases.h"

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::RankBuilder;

Plan all_to_all_direct(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "direct");
  Builder b(request.collective, "direct", n, /*pieces=*/n);
  for (int r = 0; r < n; ++r) {
    RankBuilder me = b.rank(r);
    me.copy(me.output(r), me.input(r));
    open_all(me, n);
    for (const int peer : others_from(r, n)) me.copy(me.output(peer), me.peer_input(peer, r));
    meet_all(me, n);
  }
  return b.finish();
}

}  // namespace tutti::algorithms
