// Two-shot for links that only put: each rank sends piece j to rank j, which adds up all contributions in rank order
// and sends the sum back to all. Two steps, and the bytes of a ring.
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/common/phases.h"

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::RankBuilder;

Plan all_reduce_put_two_shot(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "put_two_shot");
  Builder b(request.collective, "put_two_shot", n, /*pieces=*/n);
  b.in_rank_order();
  for (int r = 0; r < n; ++r) {
    RankBuilder me = b.rank(r);
    const std::vector<int> others = others_from(r, n);
    for (const int owner : others) me.send(owner, me.input(owner));
    me.reduce_last({me.output(r)}, take_in_rank_order(me, n, r));
    for (const int peer : others) me.release(peer);
    for (const int peer : others) me.send(peer, me.output(r));
    for (const int owner : others) me.recv(owner, me.output(owner));
  }
  return b.finish();
}

}  // namespace tutti::algorithms
