#include "collectives/planner/candidates.h"

#include <algorithm>
#include <numeric>

#include "collectives/plan/layout.h"
#include "collectives/plan/rename.h"
#include "topology/orders.h"

namespace tutti::planner {

using algorithms::Algorithm;
using plan::Plan;
using topology::Graph;

namespace {

/// The plan in which rank order[p] stands at position p.
Plan in_order(const Algorithm& algorithm, const Demand& demand, int root, const Graph& graph,
              const std::vector<int>& order) {
  algorithms::PlanRequest request{demand.collective, demand.ranks, 0, {}};
  if (has_root(demand.collective)) {
    request.root = static_cast<int>(std::find(order.begin(), order.end(), root) - order.begin());
  }
  for (const int rank : order) request.host_of_rank.push_back(graph.host_of(rank));
  const bool is_rank_order = std::is_sorted(order.begin(), order.end());
  return is_rank_order ? algorithm.build(request) : plan::renamed(algorithm.build(request), order);
}

/// The same ring, beginning with its lowest rank.
std::vector<int> from_lowest(std::vector<int> order) {
  std::rotate(order.begin(), std::min_element(order.begin(), order.end()), order.end());
  return order;
}

}  // namespace

std::vector<Candidate> candidates(const Demand& demand, const Graph& graph, int root, const CostOptions& options) {
  Demand here = demand;
  here.ranks = graph.ranks();
  std::vector<int> rank_order(static_cast<std::size_t>(here.ranks));
  std::iota(rank_order.begin(), rank_order.end(), 0);
  const std::vector<topology::Ring> rings = topology::rings(graph);
  if (rings[0].rail != topology::kAnyRail) here.load_store = here.buffers_open = false;
  const std::vector<int> ring_order = from_lowest(rings[0].order);
  const bool is_split = plan::placements_of(here.collective).input == plan::Placement::split;

  std::vector<Candidate> all;
  for (const Algorithm& algorithm : algorithms::table()) {
    if (algorithm.collective != here.collective) continue;
    Candidate candidate{&algorithm, "rank order", why_not(algorithm, here), options, {}, nullptr};
    candidate.options.bytes = here.bytes;
    if (!candidate.why_not.empty()) {
      all.push_back(std::move(candidate));
      continue;
    }
    const auto add = [&](const char* order, Plan plan, bool lanes_are_rails) {
      Candidate one = candidate;
      one.order = order;
      one.options.lanes_are_rails = lanes_are_rails;
      one.plan = std::make_shared<const Plan>(std::move(plan));
      one.estimate = price(*one.plan, graph, one.options);
      all.push_back(std::move(one));
    };
    add("rank order", in_order(algorithm, here, root, graph, rank_order), false);
    const bool may_reorder = !(here.deterministic && reduces(here.collective));
    if (algorithm.needs_load_store || !may_reorder) continue;
    if (ring_order != rank_order) add("ring order", in_order(algorithm, here, root, graph, ring_order), false);
    if (!is_split || rings.size() < 2 || here.collective == Collective::barrier) continue;
    std::vector<Plan> plans;
    for (const topology::Ring& ring : rings) plans.push_back(in_order(algorithm, here, root, graph, ring.order));
    add("an order for each rail", plan::side_by_side(plans), true);
  }
  std::stable_sort(all.begin(), all.end(), [](const Candidate& x, const Candidate& y) {
    if (x.why_not.empty() != y.why_not.empty()) return x.why_not.empty();
    return x.estimate.us < y.estimate.us;
  });
  return all;
}

}  // namespace tutti::planner
