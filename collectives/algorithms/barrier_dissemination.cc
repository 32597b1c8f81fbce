// In step k a rank signals the rank 2^k above and waits for the one 2^k below: ceil(log2 n) steps, no data.
// Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization", 1988.
#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/common/phases.h"

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::RankBuilder;

Plan barrier_dissemination(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "dissemination");
  Builder b(request.collective, "dissemination", n, /*pieces=*/1);
  for (int r = 0; r < n; ++r) {
    RankBuilder me = b.rank(r);
    for (int distance = 1; distance < n; distance *= 2) {
      me.signal((r + distance) % n);
      me.wait(modulo(r - distance, n));
    }
  }
  return b.finish();
}

}  // namespace tutti::algorithms
