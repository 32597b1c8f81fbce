// Which ranks are together on a host, for algorithms that go within hosts and across them.
#pragma once

#include <vector>

#include "collectives/algorithms/algorithms.h"

namespace tutti::algorithms {

/// Hosts are numbered in the order of their first rank, and stand in a ring. As many ranks as the smallest host has are
/// "leaders" on each; leaders at the same place talk to each other. What belongs to a rank goes by the leaders of its
/// own place (modulo how many there are).
struct HostMap {
  explicit HostMap(const PlanRequest& request);

  int hosts() const { return static_cast<int>(ranks.size()); }
  /// Returns the other ranks of the rank's host, beginning after itself: each rank begins with another one.
  std::vector<int> neighbours(int rank) const;
  /// Returns the rank on `host` (any number, modulo hosts()) that handles what belongs to `rank` of another host.
  int leader(int host, int rank) const;
  /// The ranks of `host` whose things `rank` handles on its own host: as their leader, or as itself.
  std::vector<int> served_ranks(int rank, int host) const;

  std::vector<std::vector<int>> ranks;  // of each host, ascending
  std::vector<int> host_of, local_of;   // by rank: its host, and its place there
  int leaders = 1;                      // on each host
};

}  // namespace tutti::algorithms
