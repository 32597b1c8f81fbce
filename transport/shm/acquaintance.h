// How the processes of a host get to know each other when a job begins: each hands its arena's descriptor to the
// others, opens a handle on their lives, and tries whether it may read their plain memory.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "transport/bootstrap/bootstrap.h"
#include "transport/shm/shm.h"

namespace tutti::transport {

struct Acquaintance {
  std::vector<std::shared_ptr<const ShmProcess>> processes;  // by rank of the job
  bool cross_memory = false;  // every rank may read and write every other's plain memory, and it pays
};

/// A collective call of all ranks of the job. Errors: unsupported (a rank is on another host; it is named), system,
/// timeout, peer_died.
Result<Acquaintance> meet_processes(bootstrap::Bootstrap& bootstrap, Arena& arena, std::chrono::milliseconds deadline);

}  // namespace tutti::transport
