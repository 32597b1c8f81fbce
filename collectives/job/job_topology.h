// How the ranks of a job that spans hosts come to one topology: the first rank of each host sends the host's, and all
// ranks make the same of them (topology/job.h).
#pragma once

#include <vector>

#include "base/status.h"
#include "topology/topology.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/wire/wire.h"

namespace tutti {

/// Returns the topology of the job. A collective call of all its ranks. `hosts`: of each rank, numbered from 0 in the
/// order of their first ranks. With TUTTI_TOPOLOGY, the same file for all ranks, returns the file's. It must say where
/// that many ranks are, or be of one host and say nothing of ranks: then every host is such a one.
/// Errors: mismatch, which names the first rank whose topology differs from that of rank 0, the first difference and
/// both values, or a rank without a file that says where ranks are while others have one; those of
/// topology::topology_of_process() and of the bootstrap server. A rank whose own discovery fails sends the error to the
/// others, so that all fail.
Result<topology::Topology> exchange_topology(bootstrap::Bootstrap& bootstrap, const std::vector<int>& hosts,
                                             const transport::WireInfo& wire);

}  // namespace tutti
