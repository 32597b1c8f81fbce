#include "collectives/algorithms/common/shards.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "collectives/algorithms/common/phases.h"

namespace tutti::algorithms {

ShardChain::ShardChain(const PlanRequest& request, int rank) {
  std::vector<std::vector<int>> hosts = ranks_by_host(request);
  const auto has = [](int r) {
    return [r](const std::vector<int>& ranks) { return std::find(ranks.begin(), ranks.end(), r) != ranks.end(); };
  };
  std::rotate(hosts.begin(), std::find_if(hosts.begin(), hosts.end(), has(request.root)), hosts.end());
  std::vector<int>& first = hosts.front();
  std::rotate(first.begin(), std::find(first.begin(), first.end(), request.root), first.end());
  std::size_t smallest = first.size();
  for (const std::vector<int>& ranks : hosts) smallest = std::min(smallest, ranks.size());
  shards = static_cast<int>(smallest);

  const auto own = std::find_if(hosts.begin(), hosts.end(), has(rank));
  host = *own;
  local = static_cast<int>(std::find(host.begin(), host.end(), rank) - host.begin());
  with_root = own == hosts.begin();
  if (!leads()) return;
  if (!with_root) before = (*std::prev(own))[local];
  if (std::next(own) != hosts.end()) after = (*std::next(own))[local];
}

std::vector<int> ShardChain::others() const {
  std::vector<int> result;
  for (const int place : others_from(local, static_cast<int>(host.size()))) {
    if (!with_root || place != 0) result.push_back(host[place]);
  }
  return result;
}

}  // namespace tutti::algorithms
