// Calls that are measured on a communicator, and their plans, which the cost model is asked about.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/communicator/communicator.h"
#include "collectives/planner/cost.h"
#include "collectives/planner/table.h"
#include "topology/graph.h"

namespace tutti::tuning {

struct Case {
  Collective collective = Collective::all_reduce;
  std::size_t bytes = 0;   // of the largest buffer
  std::string_view asked;  // a row of the algorithm table (static memory), or empty: the planner chooses
  double measured_us = 0;
  std::string algorithm;                   // that ran
  std::shared_ptr<const plan::Plan> plan;  // of that
  planner::CostOptions options;            // with which its plan was chosen
};

/// The collectives, each from 8 bytes to 16 MiB by a factor of 8.
std::vector<Case> cases_of(const std::vector<Collective>& collectives);

/// Measures the case: the time of a call in the midst of many, by the slowest rank, in the best of a few batches, which
/// is what it takes when nothing else runs. What was measured before stays where it was less. All ranks make the same
/// calls in the same order, and get the same time. Memory is registered. Errors: the calls'; memory_limit.
Status measure(TuttiCommunicator& communicator, Case& one);

/// The largest of all ranks' values, on all of them.
Result<double> largest(TuttiCommunicator& communicator, double mine);

/// The places of a communicator's ranks, as it plans from them.
struct Place {
  topology::Topology topology;
  std::string network;  // in words; empty: one host
};
/// Errors: system, when the host cannot be looked at.
Result<Place> place_of(const TuttiCommunicator& communicator);

/// Returns the times of these cases by the cost model, with the costs of `table`. Errors: Graph::of()'s.
Result<std::vector<double>> predicted_us(const std::vector<Case>& cases, const Place& place,
                                         const planner::Table& table);

}  // namespace tutti::tuning
