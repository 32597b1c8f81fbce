// Each rank sends each block to its owner, then receives its own: one step. All blocks of a round have left before any
// is written over: in place is safe.
#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/common/phases.h"

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::RankBuilder;

Plan all_to_all_linear(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "linear");
  Builder b(request.collective, "linear", n, /*pieces=*/n);
  for (int r = 0; r < n; ++r) {
    RankBuilder me = b.rank(r);
    for (const int peer : others_from(r, n)) me.send(peer, me.input(peer));
    me.copy(me.output(r), me.input(r));
    for (const int peer : others_from(r, n)) me.recv(peer, me.output(peer));
  }
  return b.finish();
}

}  // namespace tutti::algorithms
