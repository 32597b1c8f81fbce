// Within the hosts, across the hosts, within the hosts. With m the number of ranks on the smallest host the data has m
// shards. On each host the local rank s ("leader" of shard s) adds up shard s of its host; the leaders of a shard run a
// ring all-reduce over the hosts; each leader hands its shard to its host. Each host sends 2(H-1)/H of the data to
// other hosts, the least that H hosts need, whatever the numbers of ranks on them.
#include <algorithm>

#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/phases.h"

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::Range;
using plan::RankBuilder;

namespace {

/// Leaders of shard s, one per host; their pieces are those of the shard.
Team leaders_of(const std::vector<std::vector<int>>& hosts, int s, int host) {
  Team team;
  for (const std::vector<int>& ranks : hosts) team.members.push_back(ranks[s]);
  team.me = host;
  team.first_piece = s * team.size();
  return team;
}

/// Local rank s gets the host's sum of shard s (h pieces) into its output. A host of one rank has nothing to do.
void reduce_within(RankBuilder& me, const std::vector<int>& host, int local, int m, int h) {
  const int g = static_cast<int>(host.size());
  if (g == 1) return;
  for (const int s : others_from(local, g)) {
    if (s < m) me.send(host[s], me.input(s * h, h));
  }
  if (local >= m) return;
  std::vector<Range> contributions;
  for (int peer = 0; peer < g; ++peer) {
    contributions.push_back(peer == local ? me.input(local * h, h) : me.take(host[peer], h));
  }
  if (h == 1) {
    me.reduce_last({me.output(local)}, contributions);
  } else {
    me.reduce({me.output(local * h, h)}, contributions);
  }
  for (const int peer : others_from(local, g)) me.release(host[peer]);
}

/// Every shard goes from its leader to the rest of the host.
void spread_within(RankBuilder& me, const std::vector<int>& host, int local, int m, int h) {
  const std::vector<int> others = others_from(local, static_cast<int>(host.size()));
  if (local < m) {
    for (const int peer : others) me.send(host[peer], me.output(local * h, h));
  }
  for (const int s : others) {
    if (s < m) me.recv(host[s], me.output(s * h, h));
  }
}

}  // namespace

Plan all_reduce_hierarchical(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return alone(request, "hierarchical");
  const std::vector<std::vector<int>> hosts = ranks_by_host(request);
  const int h = static_cast<int>(hosts.size());
  std::size_t shards = n;
  for (const std::vector<int>& host : hosts) shards = std::min(shards, host.size());
  const int m = static_cast<int>(shards);
  Builder b(request.collective, "hierarchical", n, /*pieces=*/m * h);
  for (int host = 0; host < h; ++host) {
    for (int local = 0; local < static_cast<int>(hosts[host].size()); ++local) {
      RankBuilder me = b.rank(hosts[host][local]);
      reduce_within(me, hosts[host], local, m, h);
      if (local < m && h > 1) {
        const Team leaders = leaders_of(hosts, local, host);
        ring_reduce_scatter(me, leaders, /*from_output=*/hosts[host].size() > 1);
        ring_all_gather(me, leaders);
      }
      spread_within(me, hosts[host], local, m, h);
    }
  }
  return b.finish();
}

}  // namespace tutti::algorithms
