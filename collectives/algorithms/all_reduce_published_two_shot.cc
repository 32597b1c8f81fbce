// Two-shot through published slots: each rank publishes the pieces that its peers add up, then the sum of its own
// piece, and copies the other sums from there. Against sends, a sum is written once for all readers, and each reader
// copies it out of the caches. No credits are needed, for the reason given in all_reduce_one_shot.cc.
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/common/phases.h"

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::Range;
using plan::RankBuilder;

Plan all_reduce_published_two_shot(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "published_two_shot");
  Builder b(request.collective, "published_two_shot", n, /*pieces=*/n);
  b.in_rank_order();
  for (int r = 0; r < n; ++r) {
    RankBuilder me = b.rank(r);
    for (const int owner : others_from(r, n)) me.copy(me.published(r, owner), me.input(owner));
    meet_all(me, n);
    std::vector<Range> inputs;
    for (int peer = 0; peer < n; ++peer) inputs.push_back(peer == r ? me.input(r) : me.published(peer, r));
    me.reduce_last({me.published(r, r)}, inputs);
    meet_all(me, n);
    me.copy(me.output(r), me.published(r, r));
    for (const int owner : others_from(r, n)) me.copy(me.output(owner), me.published(owner, owner));
  }
  return b.finish();
}

}  // namespace tutti::algorithms
