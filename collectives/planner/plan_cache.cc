#include "collectives/planner/plan_cache.h"

namespace tutti::planner {

namespace {

constexpr std::size_t kMostPlans = 64;

}  // namespace

std::size_t bytes_of(const plan::Plan& plan) {
  std::size_t bytes = sizeof(plan);
  for (const plan::RankPlan& rank : plan.of_rank) {
    for (const plan::Lane& lane : rank.lanes) {
      for (const plan::Step& step : lane.steps) {
        bytes += sizeof(step) + (step.sources.size() + step.destinations.size()) * sizeof(plan::Range);
      }
    }
  }
  return bytes;
}

std::shared_ptr<const plan::Plan> PlanCache::get(const algorithms::Algorithm& algorithm, Collective collective,
                                                 int root) {
  for (const Entry& entry : entries_) {
    if (entry.algorithm == &algorithm && entry.root == root) return entry.plan;
  }
  auto plan = std::make_shared<const plan::Plan>(algorithm.build({collective, ranks_, root, host_of_rank_}));
  if (entries_.size() == kMostPlans) {
    bytes_ -= entries_.front().bytes;
    entries_.pop_front();
  }
  entries_.push_back({&algorithm, root, bytes_of(*plan), plan});
  bytes_ += entries_.back().bytes;
  return plan;
}

}  // namespace tutti::planner
