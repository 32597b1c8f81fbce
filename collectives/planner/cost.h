// What a plan will take on a graph: a simulation of all its ranks, in which every put, copy and reduce takes
// latency + bytes / bandwidth along the real links and waits where others use them.
//
//   TUTTI_ASSIGN(const topology::Graph graph, topology::Graph::of(topology));
//   const Estimate estimate = price(plan, graph, {.bytes = 1 << 20});     // estimate.us
//
// The model
//   a transfer   of b bytes takes every resource of its route (topology/graph.h) for b / (its bandwidth), beginning
//   when
//                all of them are free; it ends b / (the least bandwidth) later and has arrived after the route's
//                latency
//   a step       of a rank begins when the one before it in its lane is done. Load and store (a copy, a reduce, a put
//                within a host without GPUs) keep the lane busy until their bytes have moved; a put of another kind
//                keeps it for put_us, and goes on by itself
//   memory       what a step reads and writes at home takes the rank's own edge and its place: half of the bytes read
//                and written, since bandwidths are those of copying
//   a signal     comes when what was put before it on that link has arrived
//   rounds       are as many as the executor would take; of many rounds the first few are walked, the others take as
//                long as the last of these
// All ranks begin at the same moment. What it leaves out: caches, how ranks share cores, and that a wait may have to
// wake its thread.
//
// Pure; any thread, one at a time for each graph.
#pragma once

#include <cstddef>
#include <limits>
#include <string>

#include "collectives/plan/plan.h"
#include "topology/graph.h"

namespace tutti::planner {

struct CostOptions {
  std::size_t bytes = 0;         // of the largest buffer: the vector, or all ranks' blocks together
  bool lanes_are_rails = false;  // lane k goes by rail k; else each rank by the NIC that is nearest to it
  std::size_t scratch_half = std::size_t{1} << 20;  // what decides about rounds, as the executor has it
  std::size_t slice = std::size_t{128} << 10;
  double step_us = 0.03;  // of every step
  double put_us = 0.3;    // what it takes to hand a put to a NIC or a GPU's copy engine
  double give_up_us = std::numeric_limits<double>::infinity();  // what takes longer may be priced too low
};

struct Estimate {
  double us = 0;
  int rounds = 1;
  double bytes_across = 0;   // between hosts, of all ranks together
  int bottleneck = -1;       // the resource that is busy longest; -1: nothing moves
  double bottleneck_us = 0;  // how long
};

/// REQUIRES: verify(plan) is ok; the graph has as many ranks as the plan.
Estimate price(const plan::Plan& plan, const topology::Graph& graph, const CostOptions& options);

}  // namespace tutti::planner
