// A ring over the hosts, in which each host hands what comes to all its ranks. Block b goes from rank b to the leader
// at its place on the next host (host_map.h) and from leader to leader around the ring; every leader spreads what it
// gets within its host, while the next hop is on its way. Each block enters every other host once: with n blocks and g
// ranks a host receives n - g, the least that hosts can do.
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

std::vector<Range> outputs(const RankBuilder& me, const std::vector<int>& blocks) {
  std::vector<Range> ranges;
  for (const int block : blocks) ranges.push_back(me.output(block));
  return ranges;
}

/// Hop `hop` of the ring brings the blocks of `host`.
void pass_on(RankBuilder& me, const HostMap& map, int host, int hop) {
  const int r = me.index();
  const int own_host = map.host_of[r];
  const std::vector<int> blocks = map.served_ranks(r, host);
  if (blocks.empty()) return;
  if (hop == 1) {
    for (const int block : blocks) me.recv(block, me.output(block));
  } else {
    me.recv(map.leader(own_host - 1, blocks.front()), outputs(me, blocks));
  }
  if (hop < map.hosts() - 1) me.send(map.leader(own_host + 1, blocks.front()), outputs(me, blocks));
  for (const int peer : map.neighbours(r)) me.send(peer, outputs(me, blocks));
}

/// Receives from each neighbour the blocks of `host` that it serves.
void collect(RankBuilder& me, const HostMap& map, int host) {
  for (const int peer : map.neighbours(me.index())) {
    const std::vector<int> theirs = map.served_ranks(peer, host);
    if (!theirs.empty()) me.recv(peer, outputs(me, theirs));
  }
}

}  // namespace

Plan all_gather_hierarchical(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "hierarchical");
  const HostMap map(request);
  const int h = map.hosts();
  Builder b(request.collective, "hierarchical", n, /*pieces=*/n);
  for (int r = 0; r < n; ++r) {
    RankBuilder me = b.rank(r);
    const int own_host = map.host_of[r];
    if (h > 1) me.send(map.leader(own_host + 1, r), me.input(r));
    me.copy(me.output(r), me.input(r));
    for (const int peer : map.neighbours(r)) me.send(peer, me.input(r));
    for (int hop = 1; hop < h; ++hop) {
      pass_on(me, map, modulo(own_host - hop, h), hop);
      // One hop behind, so that no rank waits for its neighbours at each hop.
      collect(me, map, modulo(own_host - hop + 1, h));
    }
    collect(me, map, modulo(own_host + 1, h));
  }
  return b.finish();
}

}  // namespace tutti::algorithms
