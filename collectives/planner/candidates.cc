#include "collectives/planner/candidates.h"

#include <algorithm>
#include <numeric>

#include "collectives/plan/rename.h"
#include "topology/orders.h"

namespace tutti::planner {

using algorithms::Algorithm;
using plan::Plan;
using topology::Graph;

namespace {

constexpr std::size_t kLeastForLanes = std::size_t{64} << 10;  // more messages cost more than they hide below that

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

/// Calls use() with every way, not yet priced, in a fixed order; simple ones first.
template <class Use>
void for_each_way(const Demand& demand, const Graph& graph, int root, const CostOptions& options, const Algorithm* only,
                  const Use& use) {
  Demand here = demand;
  here.ranks = graph.ranks();
  std::vector<int> rank_order(static_cast<std::size_t>(here.ranks));
  std::iota(rank_order.begin(), rank_order.end(), 0);
  const std::vector<topology::Ring> rings = topology::rings(graph);
  const bool many_hosts = rings[0].rail != topology::kAnyRail;
  if (many_hosts) here.load_store = here.buffers_open = false;
  const std::vector<int> ring_order = from_lowest(rings[0].order);
  const bool may_reorder = !(here.deterministic && reduces(here.collective));
  const bool takes_lanes = many_hosts && here.lanes >= 2 && here.bytes >= kLeastForLanes &&
                           here.collective != Collective::all_to_allv;  // whose blocks cannot be cut
  const auto rails = std::min(rings.size(), static_cast<std::size_t>(here.lanes));

  for (const Algorithm& algorithm : algorithms::table()) {
    if (algorithm.collective != here.collective || (only != nullptr && &algorithm != only)) continue;
    Candidate candidate{&algorithm, "rank order", why_not(algorithm, here), options, {}, nullptr};
    candidate.options.bytes = here.bytes;
    if (!candidate.why_not.empty()) {
      use(std::move(candidate));
      continue;
    }
    const auto add = [&](const std::string& order, Plan plan, bool lanes_are_rails) {
      Candidate one = candidate;
      one.order = order;
      one.options.lanes_are_rails = lanes_are_rails;
      one.plan = std::make_shared<const Plan>(std::move(plan));
      use(std::move(one));
    };
    add("rank order", in_order(algorithm, here, root, graph, rank_order), false);
    if (algorithm.needs_load_store || !may_reorder) continue;
    if (ring_order != rank_order) add("ring order", in_order(algorithm, here, root, graph, ring_order), false);
    if (!takes_lanes) continue;
    // While one half of the message waits for another host, the other moves within this one.
    std::vector<Plan> plans(2, in_order(algorithm, here, root, graph, ring_order));
    add(ring_order == rank_order ? "rank order, two lanes" : "ring order, two lanes", plan::side_by_side(plans), false);
    if (rails < 2) continue;
    plans.clear();
    for (std::size_t rail = 0; rail < rails; ++rail) {
      plans.push_back(in_order(algorithm, here, root, graph, rings[rail].order));
    }
    add("an order for each rail", plan::side_by_side(plans), true);
  }
}

}  // namespace

std::vector<Candidate> candidates(const Demand& demand, const Graph& graph, int root, const CostOptions& options) {
  std::vector<Candidate> all;
  for_each_way(demand, graph, root, options, nullptr, [&](Candidate one) {
    if (one.plan != nullptr) one.estimate = price(*one.plan, graph, one.options);
    all.push_back(std::move(one));
  });
  std::stable_sort(all.begin(), all.end(), [](const Candidate& x, const Candidate& y) {
    if (x.why_not.empty() != y.why_not.empty()) return x.why_not.empty();
    return x.estimate.us < y.estimate.us;
  });
  return all;
}

Candidate cheapest(const Demand& demand, const Graph& graph, int root, const CostOptions& options,
                   const Algorithm* only) {
  Candidate best;
  for_each_way(demand, graph, root, options, only, [&](Candidate one) {
    if (one.plan == nullptr) return;
    if (best.algorithm != nullptr) one.options.give_up_us = best.estimate.us;
    one.estimate = price(*one.plan, graph, one.options);
    if (best.algorithm == nullptr || one.estimate.us < best.estimate.us) best = std::move(one);
  });
  return best;
}

}  // namespace tutti::planner
