// How broadcast and reduce go over several hosts: the hosts are a chain that begins at the root's, and with m the
// number of ranks on the smallest host the data has m shards. Shard s goes along the chain by the s-th rank of each
// host, its leader; so all of them, and their NICs, work at the same time. On the root's host the root is rank 0.
#pragma once

#include <vector>

#include "collectives/algorithms/algorithms.h"

namespace tutti::algorithms {

/// The place of a rank in the chain.
struct ShardChain {
  ShardChain(const PlanRequest& request, int rank);

  std::vector<int> host;   // the ranks of this host; there local s leads shard s
  int local = 0;           // this rank's number in it
  int shards = 1;          // in all
  bool with_root = false;  // the root is on this host
  int before = -1;         // the leader of this shard one host nearer to the root; -1: there is none
  int after = -1;          // ... one host farther
  bool leads() const { return local < shards; }
  std::vector<int> others() const;  // of the host, beginning after ourselves; without the root
};

}  // namespace tutti::algorithms
