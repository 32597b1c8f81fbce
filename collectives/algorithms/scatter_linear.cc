// The root sends each rank its block.
#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/common/phases.h"

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::RankBuilder;

Plan scatter_linear(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "linear");
  Builder b(request.collective, "linear", n, /*pieces=*/n, request.root);
  const int root = request.root;
  for (int r = 0; r < n; ++r) {
    RankBuilder me = b.rank(r);
    if (r != root) {
      me.recv(root, me.output(r));
      continue;
    }
    for (const int peer : others_from(r, n)) me.send(peer, me.input(peer));
    me.copy(me.output(r), me.input(r));
  }
  return b.finish();
}

}  // namespace tutti::algorithms
