// A ring over the hosts, in which each host adds up its own ranks' blocks first. The sums of a host's blocks begin at
// the host after it and collect one host's contributions at each hop (Patarasuk and Yuan 2009, phases.h, with hosts in
// place of ranks); block b goes by the leaders at the place of rank b (host_map.h), the last one hands it to b itself.
// So each host sends every block once, but its own: with n blocks and g ranks n - g, the least that hosts can do.
#include <cstddef>
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/common/host_map.h"
#include "collectives/algorithms/common/phases.h"

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::Range;
using plan::RankBuilder;

namespace {

/// Sends this rank's blocks for the ranks of `host` to the neighbours that add them up.
void give(RankBuilder& me, const HostMap& map, int host) {
  for (const int peer : map.neighbours(me.index())) {
    std::vector<Range> blocks;
    for (const int block : map.served_ranks(peer, host)) blocks.push_back(me.input(block));
    if (!blocks.empty()) me.send(peer, blocks);
  }
}

/// Hop `hop` of the ring: adds our host's contributions to what comes from the host before, and sends it on.
void collect(RankBuilder& me, const HostMap& map, int host, int hop) {
  const int r = me.index();
  const int h = map.hosts();
  const int own_host = map.host_of[r];
  const std::vector<int> blocks = map.served_ranks(r, host);
  if (blocks.empty()) return;
  std::vector<int> givers = map.neighbours(r);
  if (hop > 1) givers.insert(givers.begin(), map.leader(own_host - 1, blocks.front()));
  std::vector<Range> given;
  for (const int giver : givers) given.push_back(me.take(giver, static_cast<int>(blocks.size())));
  std::vector<Range> sums;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    std::vector<Range> contributions;
    for (const Range& slots : given) contributions.push_back(slots.part(static_cast<int>(i)));
    contributions.push_back(me.input(blocks[i]));
    if (hop == h) {
      me.reduce_last({me.output(r)}, contributions);
    } else if (contributions.size() > 1) {
      me.reduce({contributions.front()}, contributions);
    }
    sums.push_back(contributions.front());
  }
  if (hop < h - 1) me.send(map.leader(own_host + 1, blocks.front()), sums);
  for (std::size_t i = 0; i < blocks.size() && hop == h - 1; ++i) me.send(blocks[i], sums[i]);
  for (const int giver : givers) me.release(giver);
}

}  // namespace

Plan reduce_scatter_hierarchical(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "hierarchical");
  const HostMap map(request);
  const int h = map.hosts();
  Builder b(request.collective, "hierarchical", n, /*pieces=*/n);
  for (int r = 0; r < n; ++r) {
    RankBuilder me = b.rank(r);
    for (int hop = 1; hop <= h; ++hop) {
      const int host = modulo(map.host_of[r] - hop, h);
      give(me, map, host);
      collect(me, map, host, hop);
    }
  }
  return b.finish();
}

}  // namespace tutti::algorithms
