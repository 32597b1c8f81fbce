// The timeline of a pipeline run beside the simulated one.
//
//   Timeline measured = gather_timeline(run.measured, comm);
//   Simulation simulated = simulate(schedule, measured_costs(measured));
//   if (comm.rank() == 0) write_timeline("timeline.json", schedule, measured, simulated.timeline);
//   // python3 timeline.py timeline.json timeline.png
//
// JSON: {"schedule": "1f1b", "ranks": p, "stages": n, "micro_batches": m,
//        "measured": [rank 0's actions, ...], "simulated": [...]}
//   with an action as ["F", stage, micro-batch, start, end].
//   Times in seconds from the first action of the timeline. Calculations only.
#pragma once

#include <string>
#include <vector>

#include "training/pipeline/simulator.h"
#include "tutti/tutti.hpp"

namespace tutti::training {

/// Collective. Returns all ranks' actions, on every rank. Clocks are only comparable between ranks of one host.
Timeline gather_timeline(const std::vector<TimedAction>& mine, Communicator communicator);

/// The mean time of each kind of calculation, and each stage's share of it; sends cost nothing. A kind that does not
/// occur keeps its default.
Costs measured_costs(const Timeline& measured);

/// The time from the first start to the last end, and each rank's share of it without a calculation.
double makespan_of(const Timeline& timeline);
std::vector<double> idle_of(const Timeline& timeline);

std::string timeline_json(const Schedule& schedule, const Timeline& measured, const Timeline& simulated);
/// Errors: system (the file cannot be written).
void write_timeline(const std::string& path, const Schedule& schedule, const Timeline& measured,
                    const Timeline& simulated);

}  // namespace tutti::training
