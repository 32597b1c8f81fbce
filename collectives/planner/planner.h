// Chooses the plan that serves a call. On one host the rules of the Selection decide, which were measured. In a job of
// several hosts the plan is the one that the cost model finds cheapest on its graph. A rule of the user's or an
// algorithm by name comes before it; then the model decides only the order of ranks and the number of lanes.
//
// The choice is a function of the graph, the rules and the demand, so all ranks that have the same come to the same. It
// is made for the next power of two of the bytes and kept, since to price all plans takes a while. That is a
// millisecond on a few hosts, a tenth of a second or two on 64 ranks, seconds on hundreds.
//
// Threads: one at a time.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "collectives/planner/cost.h"
#include "collectives/planner/plan_cache.h"
#include "collectives/planner/selection.h"
#include "topology/graph.h"

namespace tutti::planner {

/// The size that the cost model is asked for in place of `bytes`.
inline std::size_t size_class(std::size_t bytes) { return std::bit_ceil(std::max<std::size_t>(bytes, 1)); }

class Planner {
 public:
  /// `hosts`: of each rank, as in a PlanRequest. `graph`: has these ranks; nullptr: choose by rules alone. `cost`: what
  /// the executor has for scratch and slices.
  Planner(Selection selection, std::vector<int> hosts, std::unique_ptr<const topology::Graph> graph,
          const CostOptions& cost);

  /// Returns a choice with a plan. Errors: as Selection::choose().
  Result<Choice> choose(const Demand& demand, int root);
  /// Bytes that plans take, estimated.
  std::size_t memory() const { return plans_.memory() + priced_bytes_; }
  const std::vector<int>& hosts() const { return hosts_; }
  /// Whether the cost model is asked.
  bool spans_hosts() const { return graph_ != nullptr; }
  /// Returns the graph that the model is asked about; null: it is not asked.
  const topology::Graph* graph() const { return graph_.get(); }
  const CostOptions& cost() const { return cost_; }

 private:
  // What the cost model has found, by what it was asked.
  struct Priced {
    Demand demand;  // bytes rounded up, algorithm by row
    int root = 0;
    const algorithms::Algorithm* only = nullptr;
    Choice choice;
    std::size_t bytes = 0;  // of the plan
  };
  Result<Choice> by_cost(Demand demand, int root, const Choice& by_users);

  const Selection selection_;
  const std::vector<int> hosts_;
  PlanCache plans_;
  const std::unique_ptr<const topology::Graph> graph_;
  const CostOptions cost_;
  std::deque<Priced> priced_;
  std::size_t priced_bytes_ = 0;
};

}  // namespace tutti::planner
