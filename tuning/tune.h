// Finds the costs with which the model (planner/cost.h) best tells what calls take on this machine or in this job.
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

/// Measures all of them in turn, kTurns times over: what disturbs one of them now may leave it in peace later. Fewer
/// times, but once, where that is spent on some rank which is allowed. How often it was. Errors: as measure().
Result<int> measure_all(TuttiCommunicator& communicator, std::vector<Case>& cases, const OnCase& on_case,
                        const IsSpent& is_spent = {});
inline constexpr int kTurns = 8;

/// What the table of costs is sought from: all_reduce, all_gather and broadcast; and where several hosts have more than
/// two ranks, short all_gathers by staged_direct, in which each rank sends to all others at once: nothing that is
/// chosen for the three may do so.
std::vector<Case> cases_to_tune(const Place& place);
/// What it is held against: all_reduce, all_gather, broadcast, reduce_scatter and all_to_all, as they are chosen.
std::vector<Case> cases_to_compare();

struct Costs {
  planner::Table table;
  bool in_full = true;  // the search has come to its end
};

/// The costs with which the predictions for these cases, all measured, are nearest in ratio. Costs that they say
/// nothing of stay as `known`, an earlier table of this place, has them, or as assumed. Where ranks of
/// one host share cores and there is such a table, the cases say what a change of ranks takes, and nothing more. Takes
/// some seconds; on 32 ranks of several hosts a minute or two, unless what is allowed for it is spent before: then they
/// are the best that it has come to. Errors: as predicted_us().
Result<Costs> table_for(const std::vector<Case>& cases, const Place& place, const planner::Table* known = nullptr,
                        const IsSpent& is_spent = {});

/// Which of the cases is predicted within 30 %: measured / 1.3 to measured * 1.3.
bool is_near(double predicted_us, double measured_us);

}  // namespace tutti::tuning
