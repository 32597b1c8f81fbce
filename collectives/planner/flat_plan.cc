#include "collectives/planner/flat_plan.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <tuple>

#include "base/check.h"
#include "base/index.h"
#include "collectives/plan/express.h"
#include "collectives/plan/layout.h"

namespace tutti::planner {

using plan::Channel;
using plan::Guard;
using plan::Range;
using plan::Step;
using plan::StepKind;
using topology::Route;

namespace {

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
    touched_.resize(2 * at(flat.ranks) * at(flat.pieces));
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
          // Blocks that stood side by side may no longer do so: one step for each, as in plan::renamed().
          const int parts = cuts_ && !step.sources.empty() ? step.sources.front().count : 1;
          for (int part = 0; part < parts; ++part) add(step, rank, lane, parts);
        }
      }
    }
    flat_.first_step.push_back(static_cast<std::int32_t>(flat_.steps.size()));
    count_tells();
  }

 private:
  static constexpr char kUntouched = 0, kRead = 1, kWritten = 2;

  // What its bytes take, in flat_.resources.
  struct Way {
    std::int32_t first = -1;
    std::int32_t count = 0;
    double latency_us = 0;
  };

  /// Adds one of `parts` equal parts of a step.
  void add(const Step& step, int rank, int lane, int parts) {
    const int peer = step.peer < 0 ? -1 : order_[at(step.peer)];
    FlatStep flat{.kind = step.kind, .guard = step.guard, .peer = peer};
    for (const Range& range : step.sources) touch(range, kRead);
    for (const Range& range : step.destinations) touch(range, kWritten);
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
        if (flat.away || on_device(rank)) {
          move(way(rank, peer, lane), step.sources[0].count / parts, 0);
        } else {
          work(step, rank, lane, parts);
        }
        break;
      case StepKind::reduce:
        for (const Range& range : step.sources) flat.summed += static_cast<double>(range.count / parts);
        work(step, rank, lane, parts);
        break;
      case StepKind::copy: work(step, rank, lane, parts); break;
    }
    flat.moves = static_cast<std::int32_t>(flat_.moves.size()) - flat.first_move;
    flat_.steps.push_back(flat);
  }

  /// Adds what a rank reads and writes by itself. A core copies with its own hands wherever the bytes lie: it is half
  /// busy with what it reads and half with what it writes, and the owner of the memory not at all. A GPU's bytes come
  /// along the route.
  void work(const Step& step, int rank, int lane, int parts) {
    const double share = on_device(rank) ? 1 : 0.5;
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
        const Way& there = !on_device(rank) ? by_core(rank, owner, reads)
                           : reads          ? way(owner, rank, lane)
                                            : way(rank, owner, lane);
        move(there, share * count, reads ? there.latency_us : 0);
      }
    }
    if (!on_device(rank)) pass(step, rank, parts);
    const bool onto_itself = step.kind == StepKind::copy && step.sources[0] == step.destinations[0];
    if (!onto_itself && at_home > 0) move(home(rank), at_home, 0);
  }

  void touch(const Range& range, char how) {
    if (!plan::is_user(range.space)) return;
    const std::size_t buffer = range.space == plan::Space::input ? 0 : 1;
    const std::size_t whose = buffer * at(flat_.ranks) + at(order_[at(range.rank)]);
    const std::size_t first = whose * at(flat_.pieces) + at(range.first);
    for (std::size_t i = first; i < first + at(range.count); ++i) {
      if (touched_[i] == kUntouched) ++flat_.touched;
      if (touched_[i] != kRead && how == kRead) ++flat_.read;
      if (touched_[i] != kRead) touched_[i] = how;
    }
  }

  /// Adds the cost of writing into slots that other cores have read.
  void pass(const Step& step, int rank, int parts) {
    for (const Range& range : step.destinations) {
      const int owner = order_[at(range.rank)];
      const bool is_own = owner == rank;
      const bool others_read = range.space == (is_own ? plan::Space::published : plan::Space::scratch);
      if (!others_read || (!is_own && is_on_core_of(rank, owner))) continue;
      Move& one = flat_.moves.emplace_back();
      one.pieces = static_cast<double>(range.count / parts);
      one.passes = true;
    }
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

  /// Returns the way of a core that reads or writes the memory of another rank of its host: its own way to memory and
  /// what lies between their places, but nothing of the other's core.
  const Way& by_core(int rank, int owner, bool reads) {
    Way& known = by_core_[{rank, owner, reads}];
    if (known.first >= 0) return known;
    const Route& there = reads ? graph_.route(owner, rank) : graph_.route(rank, owner);
    Route route = graph_.at_home(rank);
    route.latency_us = there.latency_us;
    const int edges = static_cast<int>(graph_.edges().size());
    for (const int resource : there.resources) {
      if (resource < edges) {
        const topology::Edge& edge = graph_.edges()[at(resource)];
        if (is_cores_own(edge.from) || is_cores_own(edge.to)) continue;
      }
      route.resources.push_back(resource);
    }
    std::sort(route.resources.begin(), route.resources.end());
    route.resources.erase(std::unique(route.resources.begin(), route.resources.end()), route.resources.end());
    return known = laid(route);
  }

  bool is_cores_own(int vertex) const {
    const topology::VertexKind kind = graph_.vertices()[at(vertex)].kind;
    return kind == topology::VertexKind::rank || kind == topology::VertexKind::core;
  }

  bool is_on_core_of(int rank, int other) const {
    return graph_.topology().ranks[at(rank)] == graph_.topology().ranks[at(other)];
  }

  bool on_device(int rank) const { return graph_.topology().ranks[at(rank)].kind == topology::PlaceKind::device; }

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

  /// Counts the announcements: a rank that sends nothing to a peer on another host, but receives something from it,
  /// must announce each call to it.
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
  std::vector<int> order_;                             // the rank at each place of the plan
  const bool cuts_;                                    // pieces belong to ranks, whose order has changed
  std::vector<std::int32_t> links_;                    // by pair, lane and channel; -1: not used yet
  std::vector<Way> routes_;                            // by pair and lane
  std::vector<Way> homes_;                             // by rank
  std::map<std::tuple<int, int, bool>, Way> by_core_;  // rank, whose memory, whether it reads
  std::vector<char> touched_;  // by buffer, rank and piece: whether that is read, or only written
  std::vector<bool> says_;     // by pair, of those on different hosts
};

}  // namespace

FlatPlan::FlatPlan(const plan::Plan& plan, const topology::Graph& graph, const std::vector<int>& order)
    : ranks(plan.ranks),
      pieces(plan.pieces),
      slots(plan.slots),
      published(plan.published),
      lanes(static_cast<int>(plan.of_rank.front().lanes.size())),
      express(plan::express_senders(plan).has_value()) {
  TUTTI_CHECK_EQ(plan.ranks, graph.ranks());
  Layer(*this, plan, graph, order).lay();
}

}  // namespace tutti::planner
