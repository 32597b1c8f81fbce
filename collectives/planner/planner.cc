#include "collectives/planner/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "collectives/planner/candidates.h"

namespace tutti::planner {

namespace {

constexpr std::size_t kMostPriced = 64;

bool same(const Demand& x, const Demand& y) {
  return x.collective == y.collective && x.bytes == y.bytes && x.deterministic == y.deterministic &&
         x.in_place == y.in_place && x.lanes == y.lanes;
}

}  // namespace

Planner::Planner(Selection selection, std::vector<int> hosts, std::unique_ptr<const topology::Graph> graph,
                 const CostOptions& cost)
    : selection_(std::move(selection)),
      hosts_(std::move(hosts)),
      plans_(static_cast<int>(hosts_.size()), hosts_),
      graph_(std::move(graph)),
      cost_(cost) {}

Result<Choice> Planner::choose(const Demand& demand, int root) {
  if (graph_ != nullptr) {
    Demand across = demand;
    across.load_store = across.buffers_open = false;
    TUTTI_ASSIGN(const Choice by_users, selection_.choose_by_users(across));
    return by_cost(across, root, by_users);
  }
  TUTTI_ASSIGN(Choice choice, selection_.choose(demand));
  choice.plan = plans_.get(*choice.algorithm, demand.collective, root);
  return choice;
}

Result<Choice> Planner::by_cost(Demand demand, int root, const Choice& by_users) {
  const algorithms::Algorithm* only = by_users.algorithm;
  demand.bytes = size_class(demand.bytes);
  demand.algorithm = {};
  const auto found = std::find_if(priced_.begin(), priced_.end(), [&](const Priced& one) {
    return one.only == only && one.root == root && same(one.demand, demand);
  });
  const auto with_users_reason = [&](Choice choice) {
    if (only != nullptr) choice.reason = by_users.reason + "; " + choice.reason;
    return choice;
  };
  if (found != priced_.end()) return with_users_reason(found->choice);

  const Candidate best = cheapest(demand, *graph_, root, cost_, only);
  if (best.algorithm == nullptr) {
    return unsupported(fmt::format("no algorithm serves {} of {} bytes across {} hosts{}", name_of(demand.collective),
                                   demand.bytes, graph_->topology().hosts.size(),
                                   demand.deterministic ? ", deterministic" : ""));
  }
  Choice choice{
      best.algorithm,
      fmt::format("{}; predicted {:.1f} us for {} bytes across hosts", best.order, best.estimate.us, demand.bytes),
      best.plan, best.options.slice};
  if (priced_.size() == kMostPriced) {
    priced_bytes_ -= priced_.front().bytes;
    priced_.pop_front();
  }
  priced_.push_back({demand, root, only, choice, bytes_of(*best.plan)});
  priced_bytes_ += priced_.back().bytes;
  return with_users_reason(std::move(choice));
}

}  // namespace tutti::planner
