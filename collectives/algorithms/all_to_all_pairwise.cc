// n steps; in step k ranks i and j with i + j = k (mod n) exchange their blocks. As a rank sends to and receives from
// the same partner in a step, its block has left before the partner's is written over it: in place is safe.
#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/common/phases.h"

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::RankBuilder;

Plan all_to_all_pairwise(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "pairwise");
  Builder b(request.collective, "pairwise", n, /*pieces=*/n);
  for (int r = 0; r < n; ++r) {
    RankBuilder me = b.rank(r);
    for (int k = 0; k < n; ++k) {
      const int partner = modulo(k - r, n);
      if (partner == r) {
        me.copy(me.output(r), me.input(r));
        continue;
      }
      me.send(partner, me.input(partner));
      me.recv(partner, me.output(partner));
    }
  }
  return b.finish();
}

}  // namespace tutti::algorithms
