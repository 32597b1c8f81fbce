// Whether the kernel's cross-memory access is worth using between the ranks of a job.
#pragma once

#include <memory>
#include <vector>

#include "base/status.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/shm/arena.h"
#include "transport/shm/shm.h"

namespace tutti::transport {

/// Tries both ways to move 2 MiB of plain memory from each rank to the next: one copy by the kernel, and two through
/// slots in shared memory. The kernel's must be faster by a quarter; whether it is depends on the machine and on the
/// distance of the ranks' cores (perf/findings.md). A collective call of all ranks; all get the same answer. It takes
/// 10 ms with 2 ranks, 25 ms with 4 ranks on 2 cores. `processes`: by rank, all but this rank's with their arena; null:
/// on another host. Errors: those of an exchange.
Result<bool> attach_pays(bootstrap::Bootstrap& bootstrap, Arena& arena,
                         const std::vector<std::shared_ptr<const ShmProcess>>& processes);

}  // namespace tutti::transport
