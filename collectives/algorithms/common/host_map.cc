#include "collectives/algorithms/common/host_map.h"

#include <algorithm>

#include "collectives/algorithms/common/phases.h"

namespace tutti::algorithms {

HostMap::HostMap(const PlanRequest& request)
    : ranks(ranks_by_host(request)), host_of(request.ranks), local_of(request.ranks), leaders(request.ranks) {
  for (int host = 0; host < hosts(); ++host) {
    const int size = static_cast<int>(ranks[host].size());
    leaders = std::min(leaders, size);
    for (int local = 0; local < size; ++local) {
      host_of[ranks[host][local]] = host;
      local_of[ranks[host][local]] = local;
    }
  }
}

std::vector<int> HostMap::neighbours(int rank) const {
  const std::vector<int>& host = ranks[host_of[rank]];
  std::vector<int> others;
  for (const int local : others_from(local_of[rank], static_cast<int>(host.size()))) others.push_back(host[local]);
  return others;
}

int HostMap::leader(int host, int rank) const { return ranks[modulo(host, hosts())][local_of[rank] % leaders]; }

std::vector<int> HostMap::served_ranks(int rank, int host) const {
  if (host == host_of[rank]) return {rank};
  std::vector<int> result;
  if (local_of[rank] >= leaders) return result;
  for (const int other : ranks[host]) {
    if (local_of[other] % leaders == local_of[rank]) result.push_back(other);
  }
  return result;
}

}  // namespace tutti::algorithms
