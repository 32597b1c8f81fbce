// A ring all-reduce over the hosts, in which each host adds up its ranks' contributions and hands them the results,
// piece by piece: while a piece is under way between hosts, the next one is summed, or the last one spread, within
// them. With m the number of ranks on the smallest host the data has m shards of a piece for each host. The local rank
// s ("leader" of shard s) runs the ring of its shard (Patarasuk and Yuan 2009, phases.h, with hosts in place of ranks).
// Each host sends 2(H-1)/H of the data to other hosts, the least that H hosts need, whatever the numbers of ranks on
// them.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/common/phases.h"

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::Range;
using plan::RankBuilder;

namespace {

/// The place of a rank: its host, of h, and its number there. `m`: how many shards there are.
struct Stand {
  const std::vector<std::vector<int>>& hosts;
  int host;
  int local;
  int m;

  int h() const { return static_cast<int>(hosts.size()); }
  bool leads() const { return local < m; }
  /// Returns the leader of this rank's shard on the next host in the ring, or on the one before.
  int next() const { return hosts[modulo(host + 1, h())][local]; }
  int prev() const { return hosts[modulo(host - 1, h())][local]; }
  /// The others of the host, beginning after ourselves.
  std::vector<int> others() const { return others_from(local, static_cast<int>(hosts[host].size())); }
  /// The piece of a shard that begins its way around the ring, or ends it, `hop` hosts before ours.
  int piece(int shard, int hop) const { return shard * h() + modulo(host - hop, h()); }
};

/// Hop `hop` of the ring: the host's contributions to a piece of every shard, with what comes from the host before, go
/// on to the next one. The last hop ends at the host whose piece it is.
void add_up(RankBuilder& me, const Stand& at, int hop) {
  const std::vector<int>& host = at.hosts[at.host];
  for (const int s : at.others()) {
    if (s < at.m) me.send(host[s], me.input(at.piece(s, hop)));
  }
  if (!at.leads()) return;
  std::vector<int> givers;
  if (hop > 1) givers.push_back(at.prev());
  for (const int peer : at.others()) givers.push_back(host[peer]);
  std::vector<Range> contributions;
  for (const int giver : givers) contributions.push_back(me.take(giver));
  contributions.push_back(me.input(at.piece(at.local, hop)));
  const Range sum = hop == at.h() ? me.output(at.piece(at.local, hop)) : contributions.front();
  if (hop == at.h()) {
    me.reduce_last({sum}, contributions);
  } else {
    if (!givers.empty()) me.reduce({sum}, contributions);
    me.send(at.next(), sum);
  }
  for (const int giver : givers) me.release(giver);
}

/// Sends this shard's sum of the piece from `hop` hosts before to the next host, and to the other ranks of this one.
void spread(RankBuilder& me, const Stand& at, int hop) {
  if (!at.leads()) return;
  const Range sum = me.output(at.piece(at.local, hop));
  if (hop > 0) me.recv(at.prev(), sum);
  if (hop < at.h() - 1) me.send(at.next(), sum);
  for (const int peer : at.others()) me.send(at.hosts[at.host][peer], sum);
}

/// The other shards' sums of that piece come from their leaders.
void collect(RankBuilder& me, const Stand& at, int hop) {
  for (const int s : at.others()) {
    if (s < at.m) me.recv(at.hosts[at.host][s], me.output(at.piece(s, hop)));
  }
}

}  // namespace

Plan all_reduce_hierarchical(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "hierarchical");
  const std::vector<std::vector<int>> hosts = ranks_by_host(request);
  const int h = static_cast<int>(hosts.size());
  std::size_t shards = n;
  for (const std::vector<int>& host : hosts) shards = std::min(shards, host.size());
  const int m = static_cast<int>(shards);
  Builder b(request.collective, "hierarchical", n, /*pieces=*/m * h);
  for (int host = 0; host < h; ++host) {
    for (int local = 0; local < static_cast<int>(hosts[host].size()); ++local) {
      RankBuilder me = b.rank(hosts[host][local]);
      const Stand at{hosts, host, local, m};
      for (int hop = 1; hop <= h; ++hop) add_up(me, at, hop);
      for (int hop = 0; hop < h; ++hop) {
        spread(me, at, hop);
        // One hop behind, so that no rank waits for its neighbours at each hop.
        if (hop > 0) collect(me, at, hop - 1);
      }
      collect(me, at, h - 1);
    }
  }
  return b.finish();
}

}  // namespace tutti::algorithms
