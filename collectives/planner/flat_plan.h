// A plan on a graph as flat arrays, for the simulation of cost.cc: every step knows its links and the resources that
// its bytes take, and nothing is looked up or allocated while it is walked.
//
// Immutable once made.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/plan/plan.h"
#include "topology/graph.h"

namespace tutti::planner {

/// A number of pieces that move along a route.
struct Move {
  std::int32_t first = 0;  // of FlatPlan::resources
  std::int32_t count = 0;
  double pieces = 0;
  double latency_us = 0;  // that the rank which moves them waits for
  bool passes = false;    // takes nothing but what it costs to write into a slot that another core has read
};

struct FlatStep {
  plan::StepKind kind = plan::StepKind::copy;
  plan::Guard guard = plan::Guard::always;
  bool away = false;  // its peer is on another host
  std::int32_t peer = -1;
  std::int32_t link = -1;       // of a signal or a wait: whose; of a put: the data's
  std::int32_t data_link = -1;  // of a signal: whose puts it goes behind
  std::int32_t first_move = 0;  // of FlatPlan::moves
  std::int32_t moves = 0;
  double latency_us = 0;  // of an open, a signal or a put: of its route
  double summed = 0;      // pieces that a reduce reads
};

struct FlatPlan {
  /// `order`: as in plan::renamed(), which need not be called; empty: rank order. Messages between hosts
  /// go by the rails that the wires send them by (topology/rails.h). REQUIRES: the graph has as many ranks as the plan.
  FlatPlan(const plan::Plan& plan, const topology::Graph& graph, const std::vector<int>& order);

  int ranks = 0;
  int pieces = 0;
  int slots = 0;
  int published = 0;
  int lanes = 0;
  int links = 0;         // one-way, of a lane and a channel
  bool express = false;  // what is small enough goes in the signals (plan/express.h)
  double read = 0;       // pieces of the callers' buffers that cores read, each once however many ranks do,
  double touched = 0;    // and those that they read or write
  std::vector<FlatStep> steps;
  std::vector<std::int32_t> first_step;  // of lane l of rank r: [r * lanes + l]; one more at the end
  std::vector<Move> moves;
  std::vector<std::int32_t> resources;
  std::vector<double> moved;        // by resource: pieces in each round
  std::vector<std::int32_t> tells;  // by rank: announcements for each call, sent or received (count_tells())
};

}  // namespace tutti::planner
