// What chooses the plans of a communicator.
#pragma once

#include <memory>
#include <vector>

#include "base/status.h"
#include "collectives/job/job_context.h"
#include "collectives/planner/planner.h"
#include "collectives/planner/table.h"
#include "topology/topology.h"
#include "transport/transport.h"
#include "transport/wire/wire.h"

namespace tutti {

/// Returns the costs for ranks at the places of `here`: those measured in `table`; if that is null, the costs assumed
/// for the network `wire` (null: all are on one host). Where ranks of several hosts share cores, and nothing was
/// measured, the links of `here` become longer by what it takes to wake a rank.
planner::CostOptions costs_of(topology::Topology& here, const planner::Table* table, const transport::WireInfo* wire,
                              const transport::WindowSizes& sizes);

/// Makes the planner of a communicator among `members` of the job, by rank: the rules of TUTTI_SELECTION, and the cost
/// model if the members are on several hosts. Errors: those of the options TUTTI_SELECTION and TUTTI_TOPOLOGY.
Result<std::unique_ptr<planner::Planner>> make_planner(const JobContext& job, const std::vector<int>& members,
                                                       const transport::WindowSizes& sizes);

}  // namespace tutti
