// What chooses the plans of a communicator.
#pragma once

#include <memory>
#include <vector>

#include "base/status.h"
#include "collectives/fabric.h"
#include "collectives/planner/planner.h"
#include "transport/transport.h"

namespace tutti {

/// For a communicator among `members` of the fabric, by rank: the cost model where they are on several hosts, the rules
/// of TUTTI_SELECTION before it in any case.
/// Errors: those of the options TUTTI_SELECTION and TUTTI_TOPOLOGY.
Result<std::unique_ptr<planner::Planner>> planner_of(const Fabric& fabric, const std::vector<int>& members,
                                                     const transport::WindowSizes& sizes);

}  // namespace tutti
