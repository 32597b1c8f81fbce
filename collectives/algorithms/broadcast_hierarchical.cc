// Shards go along a chain of hosts, each by a rank of its own (shards.h), and from there to the rest of each host.
// Rounds make it a pipeline. The data enters every other host once.
#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/common/phases.h"
#include "collectives/algorithms/common/shards.h"

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::Range;
using plan::RankBuilder;

Plan broadcast_hierarchical(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "hierarchical");
  const int shards = ShardChain(request, request.root).shards;
  Builder b(request.collective, "hierarchical", n, /*pieces=*/shards, request.root);
  for (int r = 0; r < n; ++r) {
    RankBuilder me = b.rank(r);
    const ShardChain chain(request, r);
    const int own = chain.local;  // the shard that we lead, if any
    const bool is_root = r == request.root;
    if (chain.leads()) {
      const Range shard = is_root ? me.input(own) : me.output(own);
      if (!is_root) me.recv(chain.with_root ? request.root : chain.before, shard);
      if (chain.after >= 0) me.send(chain.after, shard);
      for (int s = 1; s < shards && is_root; ++s) me.send(chain.host[s], me.input(s));
      for (const int peer : chain.others()) me.send(peer, shard);
    }
    if (is_root) {
      me.copy(me.output(0, shards), me.input(0, shards));
      continue;
    }
    for (const int s : others_from(own, static_cast<int>(chain.host.size()))) {
      if (s < shards) me.recv(chain.host[s], me.output(s));
    }
  }
  return b.finish();
}

}  // namespace tutti::algorithms
