// The mirror image of broadcast_hierarchical.cc: each host adds up its own ranks' contributions to a shard at the
// leader of that shard (shards.h), what comes from the host behind it in the chain included, and sends the sum one host
// nearer to the root. Rounds make it a pipeline. Every other host sends the data once.
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/common/phases.h"
#include "collectives/algorithms/common/shards.h"

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::Range;
using plan::RankBuilder;

namespace {

/// Adds up this rank's shard over this host and all behind it.
void lead(RankBuilder& me, const ShardChain& chain, int root) {
  const bool is_root = me.index() == root;
  std::vector<int> givers;
  if (chain.after >= 0) givers.push_back(chain.after);
  for (const int place : others_from(chain.local, static_cast<int>(chain.host.size()))) {
    givers.push_back(chain.host[place]);
  }
  std::vector<Range> contributions;
  for (const int giver : givers) contributions.push_back(me.take(giver));
  contributions.push_back(me.input(chain.local));
  const Range sum = is_root ? me.output(chain.local) : contributions.front();
  if (chain.with_root) {
    me.reduce_last({sum}, contributions);
  } else if (contributions.size() > 1) {
    me.reduce({sum}, contributions);
  }
  if (!is_root) me.send(chain.with_root ? root : chain.before, sum);
  for (const int giver : givers) me.release(giver);
}

}  // namespace

Plan reduce_hierarchical(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "hierarchical");
  const int shards = ShardChain(request, request.root).shards;
  Builder b(request.collective, "hierarchical", n, /*pieces=*/shards, request.root);
  for (int r = 0; r < n; ++r) {
    RankBuilder me = b.rank(r);
    const ShardChain chain(request, r);
    for (const int s : others_from(chain.local, static_cast<int>(chain.host.size()))) {
      if (s < shards) me.send(chain.host[s], me.input(s));
    }
    if (chain.leads()) lead(me, chain, request.root);
    for (int s = 1; s < shards && r == request.root; ++s) me.recv(chain.host[s], me.output(s));
  }
  return b.finish();
}

}  // namespace tutti::algorithms
