#include "collectives/plan/plan.h"

#include <algorithm>

namespace tutti::plan {
namespace {

template <class Visit>
void for_each_step(const RankPlan& rank, Visit visit) {
  for (const Lane& lane : rank.lanes) {
    for (const Step& step : lane.steps) visit(step);
  }
}

template <class Visit>
void for_each_range(const Step& step, Visit visit) {
  for (const Range& range : step.sources) visit(range);
  for (const Range& range : step.destinations) visit(range);
}

bool is_slot(const Range& range) { return range.space == Space::scratch || range.space == Space::published; }

/// The ranks whose scratch or signals a step of `rank` touches.
void add_touched(const Step& step, std::vector<int>& ranks) {
  if (step.kind == StepKind::signal || step.kind == StepKind::wait) ranks.push_back(step.peer);
  for_each_range(step, [&](const Range& range) {
    if (is_slot(range)) ranks.push_back(range.rank);
  });
}

}  // namespace

std::vector<int> peers_of(const Plan& plan, int rank) {
  std::vector<int> peers;
  std::vector<int> touched;
  for (int other = 0; other < plan.ranks; ++other) {
    touched.clear();
    for_each_step(plan.of_rank[other], [&](const Step& step) { add_touched(step, touched); });
    if (other == rank) {
      peers.insert(peers.end(), touched.begin(), touched.end());
    } else if (std::find(touched.begin(), touched.end(), rank) != touched.end()) {
      peers.push_back(other);
    }
  }
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  std::erase(peers, rank);
  return peers;
}

bool needs_load_store(const Plan& plan) {
  for (int rank = 0; rank < plan.ranks; ++rank) {
    bool found = false;
    for_each_step(plan.of_rank[rank], [&](const Step& step) {
      if (step.kind != StepKind::copy && step.kind != StepKind::reduce) return;
      for_each_range(step, [&](const Range& range) { found = found || range.rank != rank; });
    });
    if (found) return true;
  }
  return false;
}

bool opens_peers(const Plan& plan) {
  for (const RankPlan& rank : plan.of_rank) {
    bool found = false;
    for_each_step(rank, [&](const Step& step) { found = found || step.kind == StepKind::open; });
    if (found) return true;
  }
  return false;
}

}  // namespace tutti::plan
