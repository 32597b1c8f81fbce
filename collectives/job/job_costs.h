// How the ranks of a job that spans hosts come to one table of measured costs: rank 0 finds it and sends it to all.
#pragma once

#include <optional>
#include <string>

#include "base/status.h"
#include "collectives/planner/table.h"
#include "topology/topology.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/wire/wire.h"

namespace tutti {

/// Returns the time of the core at either end of a signal: a third of the wire's latency each, for want of a
/// measurement. The rest is the way.
inline double share_of_ends(const transport::WireInfo& wire) { return wire.alpha_us / 3; }

/// Returns the words that name a network's tables, beside the host: "ucx tcp/eth0", "tcp eth0 shared cores". Ranks that
/// share cores have other costs.
std::string network_words(const transport::WireInfo& wire, const topology::Topology& job);

/// A collective call of all ranks of the job; nothing where rank 0 has none. Errors: those of planner::find_table() on
/// rank 0, which all ranks have, and of the bootstrap server.
Result<std::optional<planner::Table>> exchange_table(bootstrap::Bootstrap& bootstrap, const transport::WireInfo& wire,
                                                     const topology::Topology& job);

}  // namespace tutti
