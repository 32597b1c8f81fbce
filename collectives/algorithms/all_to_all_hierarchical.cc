// What goes from a host to one rank of another goes through one rank, its "proxy" on the sending host, as one message:
// each rank first gives its neighbours the blocks for which they are proxies, then a proxy sends each of its ranks the
// blocks of the whole host. So it goes host by host, and what the neighbours have for each other comes last, while the
// messages are under way. The proxy has the place on its host that the receiver has on its own, so that each goes by
// one rail. Every block crosses once, if it must, in messages of g blocks (g ranks on the sending host). In place is
// safe: all of the input has been sent before anything is written to the output.
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

/// Returns the proxy on `host` of rank `to`, which is on another host.
int proxy_on(const HostMap& map, int host, int to) {
  const std::vector<int>& ranks = map.ranks[host];
  return ranks[map.local_of[to] % static_cast<int>(ranks.size())];
}

/// The ranks of `host` whose proxy `rank` of another host is.
std::vector<int> served_by(const HostMap& map, int rank, int host) {
  std::vector<int> served;
  for (const int to : map.ranks[host]) {
    if (proxy_on(map, map.host_of[rank], to) == rank) served.push_back(to);
  }
  return served;
}

/// All that our host has for `host`.
void send_across(RankBuilder& me, const HostMap& map, int host) {
  const int r = me.index();
  const std::vector<int> neighbours = map.neighbours(r);
  for (const int peer : neighbours) {
    std::vector<Range> blocks;
    for (const int to : served_by(map, peer, host)) blocks.push_back(me.input(to));
    if (!blocks.empty()) me.send(peer, blocks);
  }
  const std::vector<int> served = served_by(map, r, host);
  if (served.empty()) return;
  std::vector<Range> given;  // by neighbour: its blocks for those that we serve
  for (const int peer : neighbours) given.push_back(me.take(peer, static_cast<int>(served.size())));
  for (std::size_t i = 0; i < served.size(); ++i) {
    std::vector<Range> blocks = {me.input(served[i])};
    for (const Range& slots : given) blocks.push_back(slots.part(static_cast<int>(i)));
    me.send(served[i], blocks);
  }
  for (const int peer : neighbours) me.release(peer);
}

}  // namespace

Plan all_to_all_hierarchical(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "hierarchical");
  const HostMap map(request);
  Builder b(request.collective, "hierarchical", n, /*pieces=*/n);
  for (int r = 0; r < n; ++r) {
    RankBuilder me = b.rank(r);
    const int own_host = map.host_of[r];
    for (const int host : others_from(own_host, map.hosts())) send_across(me, map, host);
    for (const int peer : map.neighbours(r)) me.send(peer, me.input(peer));
    me.copy(me.output(r), me.input(r));
    for (const int peer : map.neighbours(r)) me.recv(peer, me.output(peer));
    for (const int away : others_from(own_host, map.hosts())) {
      const int host = modulo(2 * own_host - away, map.hosts());  // whose next one we are comes first
      const int proxy = proxy_on(map, host, r);
      std::vector<Range> blocks = {me.output(proxy)};
      for (const int from : map.neighbours(proxy)) blocks.push_back(me.output(from));
      me.recv(proxy, blocks);
    }
  }
  return b.finish();
}

}  // namespace tutti::algorithms
