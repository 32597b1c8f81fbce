#include "collectives/planner/candidates.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <string_view>
#include <tuple>
#include <utility>

#include "collectives/plan/rename.h"
#include "topology/job.h"
#include "topology/orders.h"

namespace tutti::planner {

using algorithms::Algorithm;
using plan::Plan;
using topology::Graph;

namespace {

constexpr std::size_t kLeastForLanes = std::size_t{64} << 10;  // more messages cost more than they hide below that
constexpr std::size_t kShort = std::size_t{512} << 10;         // MPICH gathers longer ones by a ring
constexpr std::size_t kLongBlock = std::size_t{1} << 20;
constexpr int kMostRanksInFull = 64;  // on which everything is priced
constexpr int kLeastHostsOfPart = 4;
constexpr double kFewSteps = 3e5;       // a plan that is made and priced in no time
constexpr double kLeastOfGuess = 0.75;  // of it: what lanes may gain, and what it may be wrong by
constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr std::size_t kLeastSlice = std::size_t{128} << 10;  // the messages of smaller ones cost more than they hide
constexpr std::size_t kManySlices = 8;
constexpr const char* kRankOrder = "rank order";
constexpr const char* kRingOrder = "ring order";
constexpr const char* kGuessed = "guessed";

/// Returns whether x is the better; of equal ones the simpler: the earlier row of the table, fewer lanes, rank order.
bool is_better(const Candidate& x, const Candidate& y) {
  const auto simplicity = [](const Candidate& one) {
    return std::tuple(one.estimate.us, one.algorithm, one.options.copies, one.options.lanes_are_rails,
                      one.order != kRankOrder);
  };
  return simplicity(x) < simplicity(y);
}

/// Returns the ring, beginning with its lowest rank.
std::vector<int> from_lowest(std::vector<int> order) {
  std::rotate(order.begin(), std::min_element(order.begin(), order.end()), order.end());
  return order;
}

/// The call and its surroundings, common to all ways to serve it.
struct Question {
  Question(const Demand& demand, const Graph& graph, int root, const CostOptions& options)
      : here(demand), graph(graph), root(root), options(options), rings(topology::rings(graph)) {
    here.ranks = graph.ranks();
    this->options.bytes = here.bytes;
    rank_order.resize(static_cast<std::size_t>(here.ranks));
    std::iota(rank_order.begin(), rank_order.end(), 0);
    ring_order = from_lowest(rings[0].order);
    const bool many_hosts = rings[0].lane >= 0;
    if (many_hosts) here.load_store = here.buffers_open = false;
    // Where ranks share cores the time of a single call shows little: they go on with the next one while others pause.
    if (many_hosts && here.ranks <= kMostRanksInFull && topology::ranks_share_cores(graph.topology())) {
      this->options.back_to_back = true;
    }
    may_reorder = !(here.deterministic && reduces(here.collective));
    takes_lanes = many_hosts && may_reorder && here.lanes >= 2 && here.bytes >= kLeastForLanes &&
                  here.collective != Collective::all_to_allv;  // whose blocks cannot be cut
    rails = std::min(rings.size(), static_cast<std::size_t>(here.lanes));
    fine_slice = options.slice;
    // A pipeline of few slices is long full of holes. Between two hosts there is none.
    if (many_hosts && graph.topology().hosts.size() > 2 &&
        (here.collective == Collective::broadcast || here.collective == Collective::reduce)) {
      fine_slice = std::min(options.slice, std::max(kLeastSlice, here.bytes / kManySlices));
    }
  }

  algorithms::PlanRequest request(const std::vector<int>& order) const {
    algorithms::PlanRequest request{here.collective, here.ranks, 0, {}};
    if (has_root(here.collective)) {
      request.root = static_cast<int>(std::find(order.begin(), order.end(), root) - order.begin());
    }
    for (const int rank : order) request.host_of_rank.push_back(graph.host_of(rank));
    return request;
  }

  /// The plan in which rank order[p] stands at position p.
  Plan in_order(const Algorithm& algorithm, const std::vector<int>& order) const {
    Plan plan = algorithm.build(request(order));
    return order == rank_order ? plan : plan::renamed(plan, order);
  }

  Plan one_for_each_rail(const Algorithm& algorithm) const {
    std::vector<Plan> plans;
    for (std::size_t rail = 0; rail < rails; ++rail) plans.push_back(in_order(algorithm, rings[rail].order));
    return plan::side_by_side(plans);
  }

  Demand here;
  const Graph& graph;
  int root;
  CostOptions options;
  std::vector<topology::Ring> rings;
  std::vector<int> rank_order, ring_order;
  bool may_reorder = true;
  bool takes_lanes = false;
  std::size_t rails = 1;       // that a plan may go by at once
  std::size_t fine_slice = 0;  // that a message may be cut into, besides the usual
};

Plan plan_of(const Question& q, const Candidate& candidate) {
  if (candidate.options.lanes_are_rails) return q.one_for_each_rail(*candidate.algorithm);
  const bool in_rank_order = candidate.order.starts_with(kRankOrder);
  Plan plan = q.in_order(*candidate.algorithm, in_rank_order ? q.rank_order : q.ring_order);
  if (candidate.options.copies == 1) return plan;
  return plan::side_by_side(std::vector<Plan>(static_cast<std::size_t>(candidate.options.copies), std::move(plan)));
}

/// An algorithm that can serve.
struct Server {
  const Algorithm* algorithm = nullptr;
  double guess_us = 0;  // what it will take, rather too little
  double steps = 0;     // of all ranks together
};

/// Goes through the ways to serve a call, and calls use() with each that has a price.
template <class Use>
class Search {
 public:
  /// `all`: each is priced to its end.
  Search(const Question& question, bool all, const Use& use) : q_(question), all_(all), use_(use) {}

  void run(const std::vector<Server>& servers) {
    for (const Server& server : servers) {
      if (server.guess_us < best_us_) in_one_lane(*server.algorithm);
    }
    if (!q_.takes_lanes) return;
    for (const BoundedCandidate& candidate : bounded_) {
      if (may_be_best(candidate.in_one_lane)) in_lanes(candidate);
    }
  }

 private:
  // An algorithm that is good in one lane may be the best in several.
  struct BoundedCandidate {
    const Algorithm* algorithm = nullptr;
    Estimate in_one_lane;
    std::unique_ptr<const FlatPlan> flat;
  };
  double most_gain() const { return q_.takes_lanes ? static_cast<double>(std::max<std::size_t>(q_.rails, 2)) : 1; }
  bool may_be_best(const Estimate& in_one_lane) const { return all_ || in_one_lane.us < most_gain() * best_us_; }

  void in_one_lane(const Algorithm& algorithm) {
    const bool has_ring = !algorithm.needs_load_store && q_.may_reorder && q_.ring_order != q_.rank_order;
    algorithms::PlanRequest request = q_.request(q_.rank_order);
    Plan plan = algorithm.build(request);
    auto flat = std::make_unique<const FlatPlan>(plan, q_.graph, std::vector<int>());
    Candidate one{&algorithm, kRankOrder, {}, q_.options, {}, nullptr};
    add(one, *flat);
    if (has_ring) {
      const algorithms::PlanRequest again = q_.request(q_.ring_order);
      const bool same = again.root == request.root && again.host_of_rank == request.host_of_rank;
      if (!same) plan = algorithm.build(again);
      flat = std::make_unique<const FlatPlan>(plan, q_.graph, q_.ring_order);
      one.order = kRingOrder;
      add(one, *flat);
    }
    if (!q_.takes_lanes || algorithm.needs_load_store) return;
    bounded_.push_back({&algorithm, one.estimate, std::move(flat)});
    std::erase_if(bounded_, [&](const BoundedCandidate& candidate) { return !may_be_best(candidate.in_one_lane); });
  }

  void in_lanes(const BoundedCandidate& candidate) {
    Candidate one{
        candidate.algorithm, q_.ring_order == q_.rank_order ? kRankOrder : kRingOrder, {}, q_.options, {}, nullptr};
    if (q_.rails < 2) {
      // While one half of the message waits for another host, the other moves within this one. Both go by the same
      // links as the whole.
      one.order += ", two lanes";
      one.options.copies = 2;
      if (all_ || candidate.in_one_lane.bottleneck_us < best_us_) add(one, *candidate.flat);
      return;
    }
    one.order = "an order for each rail";
    one.options.lanes_are_rails = true;
    add(one, FlatPlan(q_.one_for_each_rail(*candidate.algorithm), q_.graph, {}));
  }

  void add(Candidate& one, const FlatPlan& flat) {
    const bool in_one_lane = one.options.copies == 1 && !one.options.lanes_are_rails;
    if (!all_) one.options.price_limit_us = best_us_ * (in_one_lane ? most_gain() : 1);
    one.estimate = price(flat, q_.graph, one.options);
    best_us_ = std::min(best_us_, one.estimate.us);
    use_(one);
    if (q_.fine_slice == q_.options.slice) return;
    Candidate finer = one;
    finer.options.slice = q_.fine_slice;
    finer.estimate = price(flat, q_.graph, finer.options);
    if (finer.estimate.rounds == one.estimate.rounds) return;
    finer.order += fmt::format(", slices of {} KiB", q_.fine_slice >> 10);
    best_us_ = std::min(best_us_, finer.estimate.us);
    use_(finer);
    if (finer.estimate.us < one.estimate.us) one.estimate = finer.estimate;
  }

  const Question& q_;
  const bool all_;
  const Use& use_;
  double best_us_ = kNever;
  std::vector<BoundedCandidate> bounded_;
};

/// Returns why an algorithm that would work should not be chosen; empty: it may be.
std::string why_superfluous(const Algorithm& algorithm, const Demand& here) {
  const std::string_view name = algorithm.name;
  if (here.ranks == 2 && name == "double_binary_tree") return "needs three ranks to be more than a chain cut in half";
  if (here.bytes > kShort && name == "bruck") return "saves messages, which long ones do not feel";
  const bool has_folded_ranks = !std::has_single_bit(static_cast<unsigned>(here.ranks));
  if (here.collective == Collective::all_gather && name == "recursive_doubling" && has_folded_ranks &&
      here.bytes > kShort) {
    return "brings all blocks to each rank beyond a power of two at last, from a single one";
  }
  // Measured at 1 Gbit/s on four hosts, 16 MiB: 107 to 117 ms, by the ring 106 to 107. The model has no such queues.
  const bool is_crowd = here.collective == Collective::all_gather && name == "linear" && here.ranks > 2;
  if (is_crowd && here.bytes / static_cast<std::size_t>(here.ranks) > kLongBlock) {
    return "sends from all ranks at once, which long blocks queue up for";
  }
  return "";
}

/// Returns the algorithms of the table that can serve, the later rows first: they are for many hosts, and a good plan
/// should come early.
std::vector<Server> servers(const Question& q, const Algorithm* only) {
  std::vector<Server> all;
  for (auto row = algorithms::table().rbegin(); row != algorithms::table().rend(); ++row) {
    const bool asked = row->collective == q.here.collective &&
                       (only == nullptr ? why_superfluous(*row, q.here).empty() : &*row == only);
    if (asked && why_not(*row, q.here).empty()) all.push_back({.algorithm = &*row});
  }
  return all;
}

/// Fills in what the algorithms would take in one lane on so many of the hosts, beginning with the root's.
void price_on_part(const Question& q, int hosts, std::vector<Server>& servers) {
  const topology::Topology& whole = q.graph.topology();
  const int all = static_cast<int>(whole.hosts.size());
  std::vector<int> members;
  for (int rank = 0; rank < q.here.ranks; ++rank) {
    if ((q.graph.host_of(rank) - q.graph.host_of(q.root) + all) % all < hosts) members.push_back(rank);
  }
  const int root = static_cast<int>(std::find(members.begin(), members.end(), q.root) - members.begin());
  const Graph graph =
      Graph::of(topology::of_members(whole, members), q.graph.assumed(), q.graph.shares().of_members(members)).take();
  const Question part(q.here, graph, root, q.options);
  for (Server& server : servers) {
    const FlatPlan flat(server.algorithm->build(part.request(part.ring_order)), graph, part.ring_order);
    server.guess_us = price(flat, graph, part.options).us;
    server.steps = static_cast<double>(flat.steps.size());
  }
}

/// Returns how many hosts suffice to compare algorithms, by halves of all of them. 0: there are few ranks, or hosts.
int hosts_of_part(const Question& q) {
  const int all = static_cast<int>(q.graph.topology().hosts.size());
  int hosts = all;
  while (hosts >= 2 * kLeastHostsOfPart && q.here.ranks / all * hosts > kMostRanksInFull) hosts /= 2;
  return q.here.ranks > kMostRanksInFull && hosts < all ? hosts : 0;
}

/// Estimates the algorithms for many ranks from their times on two parts of the hosts. Small plans come first, so
/// that a large one is made only if it may be the best.
void guess(const Question& q, std::vector<Server>& servers) {
  const int many = hosts_of_part(q);
  if (many == 0 || servers.size() == 1) return;
  const int few = std::max(many / 4, 2);
  std::vector<Server> on_few = servers;
  price_on_part(q, few, on_few);
  price_on_part(q, many, servers);
  const double more =
      std::log(static_cast<double>(q.graph.topology().hosts.size()) / many) / std::log(static_cast<double>(many) / few);
  const auto onwards = [&](double on_few_hosts, double on_many) {
    return on_many * std::pow(on_many / on_few_hosts, more);
  };
  for (std::size_t i = 0; i < servers.size(); ++i) {
    Server& server = servers[i];
    server.guess_us = kLeastOfGuess * onwards(on_few[i].guess_us, server.guess_us);
    server.steps = onwards(on_few[i].steps, server.steps);
    if (server.steps < kFewSteps) server.guess_us = 0;
  }
  std::sort(servers.begin(), servers.end(), [](const Server& x, const Server& y) { return x.steps < y.steps; });
}

}  // namespace

std::vector<Candidate> candidates(const Demand& demand, const Graph& graph, int root, const CostOptions& options) {
  const Question question(demand, graph, root, options);
  std::vector<Candidate> all;
  const auto keep = [&](const Candidate& one) { all.push_back(one); };
  std::vector<Server> able = servers(question, nullptr);
  guess(question, able);
  Search(question, hosts_of_part(question) == 0, keep).run(able);
  for (const Server& server : able) {
    const auto is_it = [&](const Candidate& one) { return one.algorithm == server.algorithm; };
    if (std::none_of(all.begin(), all.end(), is_it)) {
      all.push_back({server.algorithm, kGuessed, {}, question.options, {.us = server.guess_us}, nullptr});
    }
  }
  std::sort(all.begin(), all.end(), [](const Candidate& x, const Candidate& y) {
    return x.is_bound() != y.is_bound() ? y.is_bound() : is_better(x, y);
  });
  for (const Algorithm& algorithm : algorithms::table()) {
    if (algorithm.collective != demand.collective) continue;
    std::string why = why_not(algorithm, question.here);
    if (why.empty()) why = why_superfluous(algorithm, question.here);
    if (!why.empty()) all.push_back({&algorithm, kRankOrder, why, question.options, {}, nullptr});
  }
  return all;
}

Candidate cheapest(const Demand& demand, const Graph& graph, int root, const CostOptions& options,
                   const Algorithm* only) {
  const Question question(demand, graph, root, options);
  Candidate best;
  const auto keep_best = [&](const Candidate& one) {
    if (best.algorithm == nullptr || is_better(one, best)) best = one;
  };
  std::vector<Server> able = servers(question, only);
  guess(question, able);
  Search(question, false, keep_best).run(able);
  if (best.algorithm == nullptr) return best;
  best.plan = std::make_shared<const Plan>(plan_of(question, best));
  best.options.copies = 1;
  return best;
}

std::shared_ptr<const Plan> plan_of(const Candidate& candidate, const Demand& demand, const Graph& graph, int root) {
  return std::make_shared<const Plan>(plan_of(Question(demand, graph, root, candidate.options), candidate));
}

}  // namespace tutti::planner
