#include "collectives/planner/flat_plan.h"

#include <numeric>

#include "base/check.h"
#include "collectives/plan/layout.h"

namespace tutti::planner {

using plan::Channel;
using plan::Guard;
using plan::Range;
using plan::Step;
using plan::StepKind;
using topology::Route;

namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

/// Lays the steps of all lanes out, one after the other.
class Layer {
 public:
  Layer(FlatPlan& flat, const plan::Plan& plan, const topology::Graph& graph, const std::vector<int>& order)
      : flat_(flat),
        plan_(plan),
        graph_(graph),
        order_(order),
        cuts_(!order.empty() && plan::placements_of(plan.collective).input != plan::Placement::split) {
    if (order_.empty()) {
      order_.resize(at(flat.ranks));
      std::iota(order_.begin(), order_.end(), 0);
    }
    const std::size_t pairs = at(flat.ranks) * at(flat.ranks);
    links_.assign(pairs * at(flat.lanes) * plan::kChannels, -1);
    routes_.resize(pairs * at(flat.lanes));
    homes_.resize(at(flat.ranks));
    flat_.moved.resize(at(graph.resources()));
    says_.resize(pairs);
  }

  void lay() {
    std::size_t steps = 0;
    for (const plan::RankPlan& rank : plan_.of_rank) {
      for (const plan::Lane& lane : rank.lanes) steps += lane.steps.size();
    }
    flat_.steps.reserve(steps);
    std::vector<int> place_of(at(flat_.ranks));
    for (int place = 0; place < flat_.ranks; ++place) place_of[at(order_[at(place)])] = place;
    for (int rank = 0; rank < flat_.ranks; ++rank) {
      for (int lane = 0; lane < flat_.lanes; ++lane) {
        flat_.first_step.push_back(static_cast<std::int32_t>(flat_.steps.size()));
        for (const Step& step : plan_.of_rank[at(place_of[at(rank)])].lanes[at(lane)].steps) {
          // Blocks that stood side by side may not do so any more: one step for each, as in plan::renamed().
          const int parts = cuts_ && !step.sources.empty() ? step.sources.front().count : 1;
          for (int part = 0; part < parts; ++part) add(step, rank, lane, parts);
        }
      }
    }
    flat_.first_step.push_back(static_cast<std::int32_t>(flat_.steps.size()));
    count_tells();
  }

 private:
  // What its bytes take, in flat_.resources.
  struct Way {
    std::int32_t first = -1;
    std::int32_t count = 0;
    double latency_us = 0;
  };

  /// One of so many equal parts.
  void add(const Step& step, int rank, int lane, int parts) {
    const int peer = step.peer < 0 ? -1 : order_[at(step.peer)];
    FlatStep flat{.kind = step.kind, .guard = step.guard, .peer = peer};
    flat.away = peer >= 0 && graph_.host_of(rank) != graph_.host_of(peer);
    flat.first_move = static_cast<std::int32_t>(flat_.moves.size());
    switch (step.kind) {
      case StepKind::wait: flat.link = link(peer, rank, lane, step.channel); break;
      case StepKind::open: flat.latency_us = way(peer, rank, lane).latency_us; break;
      case StepKind::signal:
        flat.link = link(rank, peer, lane, step.channel);
        flat.data_link = link(rank, peer, lane, Channel::data);
        flat.latency_us = way(rank, peer, lane).latency_us;
        if (flat.away && step.guard == Guard::always) says_[pair(rank, peer)] = true;
        break;
      case StepKind::put:
        flat.link = link(rank, peer, lane, Channel::data);
        flat.latency_us = way(rank, peer, lane).latency_us;
        move(way(rank, peer, lane), step.sources[0].count / parts, 0);
        break;
      case StepKind::copy:
      case StepKind::reduce: work(step, rank, lane, parts); break;
    }
    flat.moves = static_cast<std::int32_t>(flat_.moves.size()) - flat.first_move;
    flat_.steps.push_back(flat);
  }

  void work(const Step& step, int rank, int lane, int parts) {
    double at_home = 0;
    for (const auto* ranges : {&step.sources, &step.destinations}) {
      for (const Range& range : *ranges) {
        const int owner = order_[at(range.rank)];
        const int count = range.count / parts;
        if (owner == rank) {
          at_home += count / 2.0;
          continue;
        }
        const bool reads = ranges == &step.sources;
        const Way& there = reads ? way(owner, rank, lane) : way(rank, owner, lane);
        move(there, count, reads ? there.latency_us : 0);
      }
    }
    const bool onto_itself = step.kind == StepKind::copy && step.sources[0] == step.destinations[0];
    if (!onto_itself && at_home > 0) move(home(rank), at_home, 0);
  }

  void move(const Way& way, double pieces, double latency_us) {
    flat_.moves.push_back({way.first, way.count, pieces, latency_us});
    for (int r = way.first; r < way.first + way.count; ++r) flat_.moved[at(flat_.resources[at(r)])] += pieces;
  }

  const Way& way(int from, int to, int lane) {
    Way& known = routes_[pair(from, to) + at(lane) * at(flat_.ranks) * at(flat_.ranks)];
    if (known.first < 0) known = laid(graph_.route(from, to, lane));
    return known;
  }

  const Way& home(int rank) {
    Way& known = homes_[at(rank)];
    if (known.first < 0) known = laid(graph_.at_home(rank));
    return known;
  }

  Way laid(const Route& route) {
    const auto first = static_cast<std::int32_t>(flat_.resources.size());
    flat_.resources.insert(flat_.resources.end(), route.resources.begin(), route.resources.end());
    return {first, static_cast<std::int32_t>(route.resources.size()), route.latency_us};
  }

  std::int32_t link(int from, int to, int lane, Channel channel) {
    std::int32_t& number =
        links_[(pair(from, to) * at(flat_.lanes) + at(lane)) * plan::kChannels + static_cast<std::size_t>(channel)];
    if (number < 0) number = flat_.links++;
    return number;
  }

  /// Who has nothing to say to a peer on another host from which it hears something must tell it of each call.
  void count_tells() {
    flat_.tells.assign(at(flat_.ranks), 0);
    for (int rank = 0; rank < flat_.ranks; ++rank) {
      for (int peer = 0; peer < flat_.ranks; ++peer) {
        if (!says_[pair(rank, peer)] || says_[pair(peer, rank)]) continue;
        ++flat_.tells[at(peer)];
        ++flat_.tells[at(rank)];  // which receives it
      }
    }
  }

  std::size_t pair(int from, int to) const { return at(from) * at(flat_.ranks) + at(to); }

  FlatPlan& flat_;
  const plan::Plan& plan_;
  const topology::Graph& graph_;
  std::vector<int> order_;           // the rank at each place of the plan
  const bool cuts_;                  // pieces belong to ranks, whose order has changed
  std::vector<std::int32_t> links_;  // by pair, lane and channel; -1: not used yet
  std::vector<Way> routes_;          // by pair and lane
  std::vector<Way> homes_;           // by rank
  std::vector<bool> says_;           // by pair, of those on different hosts
};

}  // namespace

FlatPlan::FlatPlan(const plan::Plan& plan, const topology::Graph& graph, const std::vector<int>& order)
    : ranks(plan.ranks),
      pieces(plan.pieces),
      slots(plan.slots),
      published(plan.published),
      lanes(static_cast<int>(plan.of_rank.front().lanes.size())) {
  TUTTI_CHECK_EQ(plan.ranks, graph.ranks());
  Layer(*this, plan, graph, order).lay();
}

}  // namespace tutti::planner
