// Each rank writes its block into the root's output, all at the same time.
#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/common/phases.h"

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::RankBuilder;

Plan gather_direct(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "direct");
  Builder b(request.collective, "direct", n, /*pieces=*/n, request.root);
  const int root = request.root;
  for (int r = 0; r < n; ++r) {
    RankBuilder me = b.rank(r);
    if (r != root) {
      me.open(root);
      me.copy(me.peer_output(root, r), me.input(r));
      me.signal(root);
      continue;
    }
    me.copy(me.output(r), me.input(r));
    for (const int peer : others_from(r, n)) me.wait(peer);
  }
  return b.finish();
}

}  // namespace tutti::algorithms
