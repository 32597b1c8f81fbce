// Finds the costs with which the model (planner/cost.h) best predicts what calls take on this machine or in this job.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "tuning/cases.h"
#include "tuning/fit.h"

namespace tutti::tuning {

/// Called on rank 0 after each case that was measured.
using OnCase = std::function<void(const Case& one, std::size_t number, std::size_t of)>;

/// Measures all cases, one after another, in kPasses passes: a disturbance seldom hits the same case twice. Stops early
/// when any rank's budget (`is_spent`) is used up, but measures each case at least once. Returns how many passes were
/// made. Errors: as measure().
Result<int> measure_all(TuttiCommunicator& communicator, std::vector<Case>& cases, const OnCase& on_case,
                        const IsSpent& is_spent = {});
inline constexpr int kPasses = 8;

/// The cases that the costs are fitted to: all_reduce, all_gather and broadcast. Several hosts with more than two ranks
/// add short all_gathers by `linear`, in which each rank sends to all others at once: the algorithms chosen for the
/// three may not do so.
std::vector<Case> cases_to_tune(const Place& place);
/// The cases that the predictions are compared with: all_reduce, all_gather, broadcast, reduce_scatter and all_to_all,
/// with the algorithms that the planner chooses.
std::vector<Case> cases_to_compare();

struct Costs {
  planner::Table table;
  bool in_full = true;  // the search has come to its end
};

/// Returns the costs with which the predictions for these measured cases are nearest in ratio. Costs that the cases do
/// not determine keep their value in `known`, an earlier table of this place, or their default. If ranks of one host
/// share cores and there is such a table, only the cost of a change of ranks is fitted. Takes some seconds; on 32 ranks
/// of several hosts a minute or two. When the budget is spent before, returns the best so far. Errors: as
/// predicted_us().
Result<Costs> table_for(const std::vector<Case>& cases, const Place& place, const planner::Table* known = nullptr,
                        const IsSpent& is_spent = {});

/// Whether a case is predicted within 30 %: measured / 1.3 to measured * 1.3.
bool is_near(double predicted_us, double measured_us);

}  // namespace tutti::tuning
