// The exchange between the processes of a job when it begins: all learn which of them are on the same host. Those hand
// each other their arenas' descriptors, open a pidfd of each other, and try whether they may read each other's plain
// memory.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "transport/bootstrap/bootstrap.h"
#include "transport/shm/shm.h"

namespace tutti::transport {

struct ShmPeers {
  std::vector<int> hosts;  // by rank of the job: equal numbers where ranks can share memory, from 0 in order of rank
  std::vector<std::shared_ptr<const ShmProcess>> processes;  // by rank of the job; null: on another host
  bool cross_memory = false;  // every rank may read and write the plain memory of every other on its host, and it pays
};

/// A collective call of all ranks of the job. Errors: system, timeout, peer_died.
Result<ShmPeers> exchange_shm_peers(bootstrap::Bootstrap& bootstrap, Arena& arena, std::chrono::milliseconds deadline);

}  // namespace tutti::transport
