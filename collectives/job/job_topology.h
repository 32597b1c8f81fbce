// How the ranks of a job that spans hosts come to one topology: each host's is told by its first rank, and all make the
// same of them (topology/job.h).
#pragma once

#include <vector>

#include "base/status.h"
#include "topology/topology.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/wire/wire.h"

namespace tutti {

/// A collective call of all ranks of the job. `hosts`: of each rank, numbered from 0 in the order of their first ranks.
/// With TUTTI_TOPOLOGY, which is for all ranks the same file, that; it must say where as many ranks are, or be of one
/// host and say nothing of ranks: then every host is such a one.
/// Errors: mismatch (names the first rank whose topology is not that of rank 0, the first place where they differ and
/// both values; or who has no file that says where ranks are while others have), those of
/// topology::topology_of_process() and of the bootstrap server. A rank whose own discovery fails tells the others, so
/// that all fail.
Result<topology::Topology> exchange_topology(bootstrap::Bootstrap& bootstrap, const std::vector<int>& hosts,
                                             const transport::WireInfo& wire);

}  // namespace tutti
