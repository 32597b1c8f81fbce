// Carries a schedule out on paper: finds what would hang or go wrong before a tensor moves, and says how long it takes
// and what it holds.
//
//   Simulation s = simulate(zero_bubble_h1(4, 8));    // throws when the schedule is wrong
//   s.makespan, s.idle[rank], s.peak_live[rank]
//
// Model: as Pipeline runs. A rank works through its list. A send or receive is only handed over, and the rank goes on;
//   one communication thread per rank carries its transfers out in the order of the list. A transfer begins when it is
//   the next one on both sides, takes `send` and keeps both threads busy. A calculation waits for its tensors.
// Checks: each (stage, micro-batch) has F once and either B once or I and W once (none at all in a schedule of forwards
//   only), on the stage's rank and in that order; each tensor that another rank needs is sent once and received once;
//   sends meet receives in the same order; no rank waits for ever.
// Errors: invalid_argument, one sentence with rank and action.
#pragma once

#include <vector>

#include "training/pipeline/schedule.h"

namespace tutti::training {

/// Any unit of time; > 0, `send` >= 0.
struct Costs {
  double forward = 1;
  double backward = 2;
  double backward_input = 1;
  double backward_weight = 1;
  double send = 0;
  std::vector<double> stage_factor;  // of the four calculations, for each stage; empty: all 1
};

struct TimedAction {
  Action action;
  double start = 0;
  double end = 0;
};
using Timeline = std::vector<std::vector<TimedAction>>;  // of each rank, in the order of its list

struct Simulation {
  Timeline timeline;           // a transfer starts when both sides have come to it
  double makespan = 0;         // until the last calculation has ended
  std::vector<double> idle;    // of each rank: share of the makespan in which it does not calculate
  std::vector<int> peak_live;  // of each rank: most micro-batch activations held, from F to the end of B (or W)
};

Simulation simulate(const Schedule& schedule, const Costs& costs = {});

}  // namespace tutti::training
