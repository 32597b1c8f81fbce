// The cost model: what a plan will take on a graph.
//
//   TUTTI_ASSIGN(const topology::Graph graph, topology::Graph::of(topology));
//   const Estimate estimate = price(plan, graph, {.bytes = 1 << 20});     // estimate.us
//
// How: a simulation of all ranks. Every put, copy and reduce takes latency + bytes / bandwidth along the real links,
// and waits for transfers that use the same links. All ranks begin at the same moment.
//   transfer     b bytes occupy every resource of their route (topology/graph.h) for b / (its bandwidth), beginning
//   when
//                all of them are free. The transfer ends b / (the least bandwidth) later, and has arrived after the
//                route's latency. While it waits for one resource, other transfers use the rest
//   call         takes call_us before its first step. A rank that opens a peer waits until the peer has begun the call
//   step         begins when the step before it in its lane is done, and takes step_us. Load and store (a copy, a
//                reduce, a put within a host without GPUs) keep the lane busy until their bytes have moved. Any other
//                put keeps it busy for put_us, and goes on by itself
//   message      to another host: keeps the lanes at both ends busy for message_us. The receiver saves that if it has
//                read another message of the same link since this one came. Puts of up to `inlined` bytes go along, and
//                take no put_us. With message_gb_per_s the cores move the bytes too: the sender's from the put on, the
//                receiver's from the wait on; faster where caches help
//   memory       is read and written by the core of the rank whose step it is, wherever in the host it lies. Each byte
//                takes half of a byte's copying, of that core's way to memory and of the links in between; it takes
//                nothing of the core of the rank that owns the memory
//   reduce       also takes what it reads at reduce_gb_per_s, if all of a core's bytes fit into its second-level cache.
//                Larger ones are summed while the core waits for memory
//   express      plans (plan/express.h) with pieces of at most `express` bytes carry their data in the signals. It has
//                come when they have, and waits for slots are rare
//   small slots  that another core has read are written at slot_reuse_gb_per_s: their lines must come back
//   caches       what a core copies depends on the bytes it works on: those of the callers' buffers that the ranks of a
//                host touch, each counted once, divided by its cores. Of large outputs, which are written past the
//                caches, only what is read counts. `copying` scales all resources of a host's cores
//   cores        ranks on the same core take turns (also on hosts that are one machine). A change takes switch_us.
//                Lanes of one rank take turns too, at no cost. A rank that waits gives the core away
//   signal       comes when what was put before it on that link has arrived
//   rounds       are those that the executor would take. Of many rounds the first few are simulated; each of the others
//                takes as long as the last of these
//   back_to_back the time of a call in the midst of many. A rank begins a call when those that it shares slots with
//                have begun the one before; it also sends a message to those peers of each call that it sends nothing
//                else to. Where cores are shared, ranks begin the first call one after another: ranks that start
//                simultaneously stay in lockstep, which real ranks do not
//
// Limits: it leaves out which cache holds which line, other programs, and that a wait may have to wake its thread.
// Threads: pure; any thread, one at a time for each graph.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "collectives/plan/plan.h"
#include "collectives/planner/flat_plan.h"
#include "topology/graph.h"

namespace tutti::planner {

/// The speed of a core that copies, by the bytes that it works on.
struct Copying {
  double bytes = 0;
  double gb_per_s = 0;
  friend bool operator==(const Copying&, const Copying&) = default;
};

/// Costs other than the links'. The defaults are assumptions; `tutti tune` measures them (planner/table.h).
struct Constants {
  double call_us = 0.1;
  double step_us = 0.03;
  double put_us = 0.3;             // hands a put to a network or a GPU's copy engine
  double message_us = 0.3;         // of a signal to another host and what goes along, at either end
  double message_gb_per_s = 0;     // what the cores move of it at most; 0: the NIC moves it
  double switch_us = 1.5;          // until a core goes on with another of its ranks
  double reduce_gb_per_s = 0;      // what a core sums at most, of all that it reads for it; 0: what it copies
  double slot_reuse_gb_per_s = 0;  // what a core writes into small slots that another one has read; 0: as anywhere
  std::vector<Copying> copying;    // more bytes later; in between straight on a logarithmic scale. Empty: all alike
  friend bool operator==(const Constants&, const Constants&) = default;
};

/// In place of the defaults, where ranks of several hosts share cores: a rank that waits sleeps, and the cores carry
/// the packets. About what was measured between network namespaces on two cores.
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
  bool back_to_back = false;
  double price_limit_us = std::numeric_limits<double>::infinity();  // a plan that takes longer may be priced too low
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
/// Prices a plan that is asked about again, with other bytes, constants or copies. REQUIRES: it was laid out for this
/// graph.
Estimate price(const FlatPlan& plan, const topology::Graph& graph, const CostOptions& options);

}  // namespace tutti::planner
