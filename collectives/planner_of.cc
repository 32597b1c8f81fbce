#include "collectives/planner_of.h"

#include <fmt/format.h>

#include "base/options.h"
#include "collectives/job_table.h"
#include "topology/discover.h"
#include "topology/job.h"

namespace tutti {

namespace {

/// Where the planner thinks that each rank is: as TUTTI_TOPOLOGY's file says, else where the fabric has it.
Result<std::vector<int>> hosts_of(const Fabric& fabric, const std::vector<int>& members) {
  std::vector<int> of_member = fabric.host_of_member();
  if (!options::text(Option::topology).empty()) {
    TUTTI_ASSIGN(const topology::Topology topology, topology::topology_of_process());
    if (!topology.ranks.empty() && topology.ranks.size() != of_member.size()) {
      return invalid_argument(fmt::format("TUTTI_TOPOLOGY: {} says where {} ranks are; the job has {}",
                                          options::text(Option::topology), topology.ranks.size(), of_member.size()));
    }
    if (!topology.ranks.empty()) of_member = topology::host_of_rank(topology);
  }
  std::vector<int> hosts;
  for (const int member : members) hosts.push_back(of_member[static_cast<std::size_t>(member)]);
  return hosts;
}

void assume_shared_cores(planner::Constants& constants, topology::Topology& job) {
  constants.switch_us = planner::kSharedSwitchUs;
  constants.message_gb_per_s = planner::kSharedMessageGbPerS;
  for (topology::Link& link : job.links) {
    const bool leaves_host =
        (link.a.kind == topology::PlaceKind::network) != (link.b.kind == topology::PlaceKind::network);
    if (leaves_host) link.latency_us += planner::kWakeUs / 2;  // there are two of them on each way
  }
}

}  // namespace

Result<std::unique_ptr<planner::Planner>> planner_of(const Fabric& fabric, const std::vector<int>& members,
                                                     const transport::WindowSizes& sizes) {
  TUTTI_ASSIGN(planner::Selection selection, planner::Selection::with_rules(options::text(Option::selection)));
  TUTTI_ASSIGN(std::vector<int> hosts, hosts_of(fabric, members));
  std::unique_ptr<const topology::Graph> graph;
  planner::CostOptions cost;
  if (fabric.wire_info() != nullptr) cost.constants.message_us = share_of_ends(*fabric.wire_info());
  topology::Assumed assumed;
  const planner::Table* table = fabric.table();
  if (table != nullptr) {
    cost.constants = table->constants;
    assumed = planner::assumed_by(*table);
  }
  if (const topology::Topology* job = fabric.topology(); job != nullptr) {
    topology::Topology here = topology::of_members(*job, members);
    if (table == nullptr && topology::ranks_share_cores(here)) assume_shared_cores(cost.constants, here);
    if (here.hosts.size() > 1) {
      const topology::RailShares shares = topology::RailShares(topology::host_of_rank(*job)).of_members(members);
      TUTTI_ASSIGN(topology::Graph made, topology::Graph::of(here, assumed, shares));
      graph = std::make_unique<const topology::Graph>(std::move(made));
    }
  }
  if (const transport::WireInfo* wire = fabric.wire_info(); wire != nullptr) cost.inlined = wire->copied;
  cost.express = sizes.express_bytes();
  cost.scratch_half = sizes.scratch_half;
  cost.slice = kFarSlice;
  return std::make_unique<planner::Planner>(std::move(selection), std::move(hosts), std::move(graph), cost);
}

}  // namespace tutti
