// Each half of the data is reduced up one of two trees and sent down again: O(log n) steps, every rank sends about
// twice the data in all, no matter how many ranks. Sanders, Speck, Träff 2009 (double_tree.h).
#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/common/double_tree.h"
#include "collectives/algorithms/common/phases.h"

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::RankBuilder;

Plan all_reduce_double_binary_tree(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "double_binary_tree");
  const DoubleTree trees = double_tree(ranks_by_host(request));
  Builder b(request.collective, "double_binary_tree", n, /*pieces=*/2);
  for (int r = 0; r < n; ++r) {
    RankBuilder me = b.rank(r);
    for (int half = 0; half < 2; ++half) reduce_up(me, trees.of_half[half][r], half);
    for (int half = 0; half < 2; ++half) send_down(me, trees.of_half[half][r], half);
  }
  return b.finish();
}

}  // namespace tutti::algorithms
