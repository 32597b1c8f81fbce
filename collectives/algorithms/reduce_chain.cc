// A chain through all ranks that ends at the root, each adding its own; rounds make it a pipeline.
#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/common/phases.h"

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::RankBuilder;

Plan reduce_chain(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "chain");
  Builder b(request.collective, "chain", n, /*pieces=*/1, request.root);
  const int root = request.root;
  for (int r = 0; r < n; ++r) {
    RankBuilder me = b.rank(r);
    const int from = (r + 1) % n;
    const int to = modulo(r - 1, n);
    if (r == root) {
      me.recv_reduce(from, me.output(0), me.input(0), /*last=*/true);
    } else if (from == root) {
      me.send(to, me.input(0));
    } else {
      me.recv_reduce_send(from, me.input(0), to);
    }
  }
  return b.finish();
}

}  // namespace tutti::algorithms
