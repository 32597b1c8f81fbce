#include "collectives/job/planner_factory.h"

#include <fmt/format.h>

#include <cstddef>
#include <utility>

#include "base/options.h"
#include "collectives/job/job_costs.h"
#include "topology/discover.h"
#include "topology/job.h"

namespace tutti {

namespace {

/// Returns the host of each rank for the planner: from TUTTI_TOPOLOGY's file, else from the job.
Result<std::vector<int>> hosts_of(const JobContext& job, const std::vector<int>& members) {
  std::vector<int> of_member = job.host_of_member();
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

planner::CostOptions costs_of(topology::Topology& here, const planner::Table* table, const transport::WireInfo* wire,
                              const transport::WindowSizes& sizes) {
  planner::CostOptions cost;
  const bool many_hosts = here.hosts.size() > 1;
  if (table != nullptr) cost.constants = table->constants;
  if (wire != nullptr) {
    if (table == nullptr) cost.constants.message_us = share_of_ends(*wire);
    cost.inlined = wire->copied;
  }
  if (table == nullptr && many_hosts && topology::ranks_share_cores(here)) assume_shared_cores(cost.constants, here);
  if (many_hosts) cost.slice = kNetSlice;
  cost.express = sizes.express_bytes();
  cost.scratch_half = sizes.scratch_half;
  return cost;
}

Result<std::unique_ptr<planner::Planner>> make_planner(const JobContext& job, const std::vector<int>& members,
                                                       const transport::WindowSizes& sizes) {
  TUTTI_ASSIGN(planner::Selection selection, planner::Selection::with_rules(options::text(Option::selection)));
  TUTTI_ASSIGN(std::vector<int> hosts, hosts_of(job, members));
  topology::Topology here;
  if (job.topology() != nullptr) here = topology::of_members(*job.topology(), members);
  const planner::Table* table = job.table();
  const planner::CostOptions cost = costs_of(here, table, job.wire_info(), sizes);
  std::unique_ptr<const topology::Graph> graph;
  if (here.hosts.size() > 1) {
    const topology::Assumed assumed = table != nullptr ? planner::assumed_by(*table) : topology::Assumed();
    const topology::RailShares shares =
        topology::RailShares(topology::host_of_rank(*job.topology())).of_members(members);
    TUTTI_ASSIGN(topology::Graph made, topology::Graph::of(here, assumed, shares));
    graph = std::make_unique<const topology::Graph>(std::move(made));
  }
  return std::make_unique<planner::Planner>(std::move(selection), std::move(hosts), std::move(graph), cost);
}

}  // namespace tutti
