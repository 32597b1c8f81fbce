// All the ways to serve a call on a graph, each with its price: every algorithm of the table, in the order of the ranks
// and in those that the topology suggests.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collectives/algorithms/table.h"
#include "collectives/planner/cost.h"
#include "collectives/planner/selection.h"
#include "topology/graph.h"

namespace tutti::planner {

struct Candidate {
  const algorithms::Algorithm* algorithm = nullptr;
  std::string order;    // "rank order", "ring order", the same with ", two lanes", "an order for each rail", any of
                        // these with ", slices of 128 KiB" or so, where these are not the usual ones; or "guessed":
                        // the time alone, by what it takes on fewer hosts
  std::string why_not;  // not empty: it cannot serve, and has no price
  CostOptions options;
  Estimate estimate;
  std::shared_ptr<const plan::Plan> plan;  // cheapest() gives it
  bool is_guessed() const { return order == "guessed"; }
  /// Whether the call takes about the estimate, or more.
  bool is_bound() const { return is_guessed() || estimate.us > options.price_limit_us; }
};

/// The cheapest first, then those that cannot serve. Of equal ones the simpler order comes first. On more than 64 ranks
/// of many hosts all algorithms are priced on parts of these, and what cannot be the best on all of them by that is
/// only guessed, or not priced to its end. `demand.ranks` is the graph's; `demand.load_store` and `demand.buffers_open`
/// hold inside a host and are taken as no where there are several. Up to 64 ranks of several hosts that
/// share cores have the price of a call in a row of them. `root`: of rooted collectives.
std::vector<Candidate> candidates(const Demand& demand, const topology::Graph& graph, int root = 0,
                                  const CostOptions& options = {});

/// The first of these alone, in less time: what turns out to be dearer than another is not priced to its end. `only`:
/// of this algorithm. Where none can serve, the algorithm is null. With the plan, for which `options` are.
Candidate cheapest(const Demand& demand, const topology::Graph& graph, int root, const CostOptions& options,
                   const algorithms::Algorithm* only = nullptr);

/// REQUIRES: it is one of candidates() for the same.
std::shared_ptr<const plan::Plan> plan_of(const Candidate& candidate, const Demand& demand,
                                          const topology::Graph& graph, int root = 0);

}  // namespace tutti::planner
