// A chain from the root through all ranks; rounds make it a pipeline, so that for large messages the time is that of
// one link. Every rank but the last sends the data once.
#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/common/phases.h"

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::RankBuilder;

Plan broadcast_chain(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "chain");
  Builder b(request.collective, "chain", n, /*pieces=*/1, request.root);
  const int root = request.root;
  const int last = modulo(root - 1, n);
  for (int r = 0; r < n; ++r) {
    RankBuilder me = b.rank(r);
    const int next = (r + 1) % n;
    const int prev = modulo(r - 1, n);
    if (r == root) {
      me.send(next, me.input(0));
      me.copy(me.output(0), me.input(0));
    } else if (r == last) {
      me.recv(prev, me.output(0));
    } else {
      me.recv_copy_send(prev, me.output(0), next);
    }
  }
  return b.finish();
}

}  // namespace tutti::algorithms
