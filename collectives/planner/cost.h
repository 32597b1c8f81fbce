// What a plan will take on a graph: a simulation of all its ranks, in which every put, copy and reduce takes
// latency + bytes / bandwidth along the real links and waits where others use them.
//
//   TUTTI_ASSIGN(const topology::Graph graph, topology::Graph::of(topology));
//   const Estimate estimate = price(plan, graph, {.bytes = 1 << 20});     // estimate.us
//
// The model
//   a transfer   of b bytes takes every resource of its route (topology/graph.h) for b / (its bandwidth), beginning
//                when all of them are free, and ends b / (the least bandwidth) later; while it waits for one of them
//                the others do something else. It has arrived after the route's latency
//   a call       takes call_us before its first step. Who opens a peer waits until that one has begun the same call. In
//                a row of calls a rank begins one when those that it shares slots with have begun the one before
//   a step       of a rank begins when the one before it in its lane is done, and takes step_us. Load and store
//                (a copy, a reduce, a put within a host without GPUs) keep the lane busy until their bytes have moved;
//                a put of another kind keeps it for put_us, and goes on by itself
//   a message    to another host keeps the lanes at both its ends for message_us; but not its receiver's when that one
//                has read another one by the same link since it came: they are read together. Puts of up to `inlined`
//                bytes go along with it and take no put_us. Where message_gb_per_s says that their cores move its
//                bytes, these keep the sender from when they are put on, and the receiver from when it waits for them
//                on, while they are under way; faster where caches help. In a row of calls each rank also tells those
//                peers of each call that it has nothing to send to, by a message
//   memory       is read and written by the core of the rank whose step it is, wherever in the host it lies: each byte
//                takes half of a byte's copying, of that core's way to memory and of what lies between the places, and
//                nothing of the owner's core
//   a reduce     also takes what it reads at reduce_gb_per_s, while all of a core's bytes fit into its second-level
//                cache; larger ones it sums while it waits for memory
//   express      plans (plan/express.h) whose pieces are of at most `express` bytes have their data in the signals: it
//                has come when they have, and hardly anybody waits for a slot
//   small slots  that another core has read are written at passing_gb_per_s: their lines must come back
//   caches       what a core copies depends on how much it works on: the callers' bytes that the ranks of a host touch,
//                each counted once, in equal parts for its cores; of large outputs, which are written past the caches,
//                only what is read. Where `copying` tells, all resources of a host's cores are as much faster or slower
//   cores        ranks on the same core, of hosts that are one machine too, take turns: from one to another takes
//                switch_us. So do the lanes of a rank on a core, which takes no time. Who waits gives the core away
//   a signal     comes when what was put before it on that link has arrived
//   rounds       are as many as the executor would take; of many rounds the first few are walked, the others take as
//                long as the last of these
// All ranks begin at the same moment; with `in_a_row` it is what a call takes in the midst of many, where a rank begins
// the next one as soon as it may (and where cores are shared, ranks begin the first one after the other: such as begin
// together keep a step that no real ones keep). What it leaves out: whose cache holds which line, other programs, and
// that a wait may have to wake its thread.
//
// Pure; any thread, one at a time for each graph.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "collectives/plan/plan.h"
#include "collectives/planner/flat_plan.h"
#include "topology/graph.h"

namespace tutti::planner {

/// What a core copies when it works on so many bytes.
struct Copying {
  double bytes = 0;
  double gb_per_s = 0;
  friend bool operator==(const Copying&, const Copying&) = default;
};

/// What things take that are no link's. The defaults are assumptions; `tutti tune` measures them (planner/table.h).
struct Constants {
  double call_us = 0.1;
  double step_us = 0.03;
  double put_us = 0.3;           // to hand a put to a network or a GPU's copy engine
  double message_us = 0.3;       // a signal to another host, with what goes along: to its sender, and to its receiver
  double message_gb_per_s = 0;   // what they move of it at most, by their own hands; 0: the NIC does
  double switch_us = 1.5;        // until a core goes on with another of its ranks
  double reduce_gb_per_s = 0;    // what a core sums at most, of all that it reads for it; 0: what it copies
  double passing_gb_per_s = 0;   // what a core writes into small slots that another one has read; 0: as anywhere
  std::vector<Copying> copying;  // more bytes later; in between straight on a logarithmic scale. Empty: all alike
  friend bool operator==(const Constants&, const Constants&) = default;
};

/// In place of the defaults, where ranks of several hosts share cores: whoever waits sleeps, and the cores carry the
/// packets. About what was measured between network namespaces on two cores.
inline constexpr double kSharedSwitchUs = 5;
inline constexpr double kSharedMessageGbPerS = 10;
inline constexpr double kWakeUs = 6;  // that a message is longer on its way

struct CostOptions {
  std::size_t bytes = 0;         // of the largest buffer: the vector, or all ranks' blocks together
  bool lanes_are_rails = false;  // of a candidate: each lane of its plan is in the order of a ring of its own
  int copies = 1;                // so many of the plan side by side (plan/rename.h), each with its share of the message
  std::size_t scratch_half = std::size_t{1} << 20;  // what decides about rounds, as the executor has it
  std::size_t slice = std::size_t{128} << 10;
  Constants constants;
  std::size_t inlined = 0;  // bytes of a put to another host that go along with its signal
  std::size_t express = 0;  // bytes of a piece that goes in its signal; 0: none does
  bool in_a_row = false;
  double give_up_us = std::numeric_limits<double>::infinity();  // what takes longer may be priced too low, but for rows
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
/// The same of what is asked about again, with other bytes, constants or copies. REQUIRES: it was laid out for this
/// graph.
Estimate price(const FlatPlan& plan, const topology::Graph& graph, const CostOptions& options);

}  // namespace tutti::planner
