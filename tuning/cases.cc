#include "tuning/cases.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "base/clock.h"
#include "base/options.h"
#include "collectives/job/job_costs.h"
#include "collectives/planner/candidates.h"
#include "topology/discover.h"
#include "topology/job.h"
#include "tutti/tutti.hpp"

namespace tutti::tuning {

namespace {

constexpr std::size_t kLeastBytes = 8;
constexpr std::size_t kMostBytes = std::size_t{16} << 20;
constexpr int kBatches = 2;
constexpr double kBatchUs = 3000;
// A link that is limited lets some 100 KiB pass at once after a pause.
constexpr double kBatchAcrossUs = 20'000;
constexpr std::size_t kBytesAtOnce = 512;
constexpr int kMostCalls = 20000;

struct Deallocate {
  void operator()(void* memory) const { deallocate(memory); }
};
using Memory = std::unique_ptr<void, Deallocate>;

Memory zeros(std::size_t bytes) {
  Memory memory(allocate(bytes));
  if (memory) std::memset(memory.get(), 0, bytes);
  return memory;
}

/// Microseconds of each of so many calls, by the slowest rank.
Result<double> batch(TuttiCommunicator& communicator, const Call& call, int calls) {
  TUTTI_TRY(communicator.run({.collective = Collective::barrier}));
  const std::int64_t start = now_ns();
  for (int i = 0; i < calls; ++i) TUTTI_TRY(communicator.run(call));
  return largest(communicator, static_cast<double>(now_ns() - start) * 1e-3 / calls);
}

/// The plan that ran, as the planner has made it. It is the same each time, and to price all takes a while.
Status name_plan(const TuttiCommunicator& communicator, Case& one) {
  if (one.plan != nullptr) return {};
  one.algorithm = communicator.explain_last_call().algorithm;
  const planner::Planner& planner = communicator.planner();
  const algorithms::Algorithm* algorithm = algorithms::find(one.collective, one.algorithm);
  if (algorithm == nullptr) return unsupported("no plan is called '" + one.algorithm + "'");
  if (planner.graph() != nullptr) {
    planner::Demand demand;
    demand.collective = one.collective;
    demand.ranks = communicator.size();
    demand.bytes = one.bytes;
    demand.load_store = demand.buffers_open = false;
    demand.lanes = kLanes;
    const planner::Candidate found =
        planner::cheapest(demand, *planner.graph(), 0, planner.cost(), one.asked.empty() ? nullptr : algorithm);
    if (found.algorithm == algorithm) {
      one.plan = found.plan;
      one.options = found.options;
      return {};
    }
  }
  one.options = planner.cost();
  one.plan =
      std::make_shared<const plan::Plan>(algorithm->build({one.collective, communicator.size(), 0, planner.hosts()}));
  return {};
}

}  // namespace

std::vector<Case> cases_of(const std::vector<Collective>& collectives) {
  std::vector<Case> cases;
  for (const Collective collective : collectives) {
    for (std::size_t bytes = kLeastBytes; bytes <= kMostBytes; bytes *= 8) {
      Case& one = cases.emplace_back();
      one.collective = collective;
      one.bytes = bytes;
    }
  }
  return cases;
}

Status measure(TuttiCommunicator& communicator, Case& one) {
  const auto ranks = static_cast<std::size_t>(communicator.size());
  const bool in_blocks = one.collective != Collective::all_reduce && one.collective != Collective::broadcast;
  // Blocks of whole floats: the size is rounded up.
  const std::size_t count = std::max<std::size_t>(one.bytes / sizeof(float) / (in_blocks ? ranks : 1), 1);
  one.bytes = count * sizeof(float) * (in_blocks ? ranks : 1);
  const Memory send = zeros(one.bytes);
  const Memory recv = zeros(one.bytes);
  if (!send || !recv) return Status(Code::memory_limit, "no memory for buffers of 16 MiB");
  Call call{.collective = one.collective, .send = send.get(), .recv = recv.get(), .count = count};
  call.type = DataType::f32;
  call.op = ReduceOp::sum;
  call.algorithm = one.asked;
  // Every rank counts the same: what one of them has measured all have.
  TUTTI_ASSIGN(double us, batch(communicator, call, 2));
  const bool may_be_limited = communicator.planner().spans_hosts() && one.bytes > kBytesAtOnce;
  const double batch_us = may_be_limited ? kBatchAcrossUs : kBatchUs;
  if (us < batch_us) {
    TUTTI_ASSIGN(us, batch(communicator, call, std::clamp(static_cast<int>(300 / us), 2, 300)));
  }
  const int calls = std::clamp(static_cast<int>(batch_us / us), 2, kMostCalls);
  for (int i = 0; i < kBatches; ++i) {
    TUTTI_ASSIGN(const double took, batch(communicator, call, calls));
    if (one.measured_us == 0 || took < one.measured_us) one.measured_us = took;
  }
  TUTTI_TRY(communicator.run(call));
  return name_plan(communicator, one);
}

Result<double> largest(TuttiCommunicator& communicator, double mine) {
  double all = 0;
  Call call{.collective = Collective::all_reduce, .send = &mine, .recv = &all, .count = 1};
  call.type = DataType::f64;
  call.op = ReduceOp::max;
  TUTTI_TRY(communicator.run(call));
  return all;
}

Result<Place> place_of(const TuttiCommunicator& communicator) {
  if (const topology::Graph* graph = communicator.planner().graph(); graph != nullptr) {
    return Place{graph->topology(), network_words(*communicator.job().wire_info(), graph->topology())};
  }
  TUTTI_ASSIGN(const topology::Topology found, topology::topology_of_process());
  if (found.hosts.size() != 1) return invalid_argument("TUTTI_TOPOLOGY tells of several hosts; the job is on one");
  const std::vector<int> all_here(static_cast<std::size_t>(communicator.size()), 0);
  TUTTI_ASSIGN(topology::Topology job, topology::of_job({{.found = found}}, all_here));
  return Place{std::move(job), ""};
}

Result<std::vector<double>> predicted_us(const std::vector<Case>& cases, const Place& place,
                                         const planner::Table& table) {
  topology::Topology topology = place.topology;
  planner::apply(table, topology);
  TUTTI_ASSIGN(const topology::Graph graph, topology::Graph::of(topology, planner::assumed_by(table)));
  std::vector<double> all;
  for (const Case& one : cases) {
    planner::CostOptions options = one.options;
    options.bytes = one.bytes;
    options.constants = table.constants;
    options.back_to_back = true;
    options.price_limit_us = std::numeric_limits<double>::infinity();
    all.push_back(planner::price(*one.plan, graph, options).us);
  }
  return all;
}

}  // namespace tutti::tuning
