// Each rank copies the root's input.
#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/common/phases.h"

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::RankBuilder;

Plan broadcast_direct(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "direct");
  Builder b(request.collective, "direct", n, /*pieces=*/1, request.root);
  const int root = request.root;
  for (int r = 0; r < n; ++r) {
    RankBuilder me = b.rank(r);
    if (r != root) {
      me.open(root);
      me.copy(me.output(0), me.peer_input(root, 0));
      me.signal(root);
      continue;
    }
    me.copy(me.output(0), me.input(0));
    for (const int peer : others_from(r, n)) me.wait(peer);
  }
  return b.finish();
}

}  // namespace tutti::algorithms
