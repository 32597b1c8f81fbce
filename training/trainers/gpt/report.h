// What a run cost, measured beside expected: the text that a trainer prints at its end.
//
//   CostReport report;
//   report.ranks = gather_costs(mine, comm);
//   std::fputs(to_text(report).c_str(), stdout);
#pragma once

#include <string>
#include <vector>

#include "training/trainers/gpt/strategy.h"
#include "tutti/tutti.hpp"

namespace tutti::training {

/// The cost of one rank, in bytes. Ranks exchange it as an array of f64.
struct RankCost {
  double parameters = 0, gradients = 0, optimizer = 0, padding = 0;
  double gathered = 0;        // at most, of whole parameters beside the shards
  double activations = 0;     // the most that tensors made in a step's forward and backward took (allocation_peak.h)
  double expected_state = 0;  // parameters + gradients + optimizer by formula
  double sent = 0, expected_sent = 0;  // in a step's forward and backward
};

struct CostReport {
  std::vector<RankCost> ranks;
  double step_seconds = 0;   // mean
  double wait_seconds = 0;   // of a step, for communication, by the rank that waited least: the others wait for it, too
  double alone_seconds = 0;  // that a step's communication takes with nothing else going on; 0: not known
  PipelineMeasure pipeline;
};

/// Collective.
std::vector<RankCost> gather_costs(const RankCost& mine, Communicator comm);

/// Collective over the communicators in the calls. Seconds that the calls of one step take, each made as often as in
/// the step, in registered memory: the median of 5 times.
double time_alone(const std::vector<RepeatedCall>& calls, Communicator world);

std::string to_text(const CostReport& report);

}  // namespace tutti::training
