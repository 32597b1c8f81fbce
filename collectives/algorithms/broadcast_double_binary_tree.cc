// Each half of the data goes down one of two trees below the root. Sanders, Speck, Träff 2009 (double_tree.h).
#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/common/double_tree.h"
#include "collectives/algorithms/common/phases.h"

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::RankBuilder;

Plan broadcast_double_binary_tree(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "double_binary_tree");
  const DoubleTree trees = double_tree_below(request.root, ranks_by_host(request));
  Builder b(request.collective, "double_binary_tree", n, /*pieces=*/2, request.root);
  for (int r = 0; r < n; ++r) {
    RankBuilder me = b.rank(r);
    for (int half = 0; half < 2; ++half) {
      const TreeNode& node = trees.of_half[half][r];
      if (r != request.root) me.recv(node.parent, me.output(half));
      for (const int child : node.children) me.send(child, r == request.root ? me.input(half) : me.output(half));
    }
    if (r == request.root) me.copy(me.output(0, 2), me.input(0, 2));
  }
  return b.finish();
}

}  // namespace tutti::algorithms
