#include "collectives/planner/cost.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <map>
#include <queue>
#include <set>
#include <unordered_map>

#include "base/check.h"
#include "base/even_share.h"
#include "topology/orders.h"

namespace tutti::planner {

using plan::Guard;
using plan::Plan;
using plan::Range;
using plan::Step;
using plan::StepKind;
using topology::Graph;
using topology::Route;

namespace {

constexpr int kMostRounds = 6;
constexpr int kFewCalls = 3;  // of those in a row
constexpr int kManyCalls = 7;
constexpr double kUsPerByteAtOneGb = 1e-3;  // 1 byte at 1 GB/s takes 1 ns

std::size_t at(int index) { return static_cast<std::size_t>(index); }

/// How fast a core copies when it works on `bytes`, beside the last figure of the table, which the graph has.
double speed_up(const std::vector<Copying>& copying, double bytes) {
  if (copying.empty()) return 1;
  const auto above =
      std::find_if(copying.begin(), copying.end(), [&](const Copying& one) { return one.bytes > bytes; });
  const double last = copying.back().gb_per_s;
  if (above == copying.begin()) return above->gb_per_s / last;
  const Copying& low = above[-1];
  if (above == copying.end()) return 1;
  const double way = std::log(bytes / low.bytes) / std::log(above->bytes / low.bytes);
  return low.gb_per_s * std::pow(above->gb_per_s / low.gb_per_s, way) / last;
}

class Simulation {
 public:
  Simulation(const Plan& plan, const Graph& graph, const CostOptions& options, int rounds, int calls,
             double piece_bytes)
      : plan_(plan),
        graph_(graph),
        options_(options),
        constants_(options.constants),
        rounds_(rounds),
        calls_(calls),
        piece_bytes_(piece_bytes),
        lanes_(static_cast<int>(plan.of_rank.front().lanes.size())),
        free_(at(graph.resources()), 0),
        busy_(at(graph.resources()), 0),
        positions_(at(plan.ranks * lanes_)) {
    std::map<std::pair<int, int>, int> cores;
    for (int rank = 0; rank < plan.ranks; ++rank) {
      for (const int rail : topology::rails_of_lanes(graph, rank, 1)) rail_of_.push_back(rail);
      const topology::Place& place = graph.topology().ranks[at(rank)];
      if (place.kind == topology::PlaceKind::core) {
        core_of_.push_back(cores.try_emplace({place.host, place.index}, static_cast<int>(cores.size())).first->second);
      } else {
        core_of_.push_back(-1);
      }
    }
    cores_.resize(cores.size());
    count_tells();
    for (int rank = 0; rank < plan.ranks; ++rank) {
      if (core_of_[at(rank)] >= 0) ++cores_[at(core_of_[at(rank)])].ranks;
    }
    speed_up_ = speed_up(constants_.copying, 2.0 * static_cast<double>(options.bytes));
    for (int resource = 0; resource < graph.resources(); ++resource) {
      gb_per_s_.push_back(graph.gb_per_s_of(resource) * (graph.is_of_cores(resource) ? speed_up_ : 1));
    }
  }

  Estimate run() {
    for (int lane = 0; lane < plan_.ranks * lanes_; ++lane) ready_.emplace(0, lane);
    while (!ready_.empty()) {
      const auto [time, lane] = ready_.top();
      if (time > options_.give_up_us) {
        result_.us = time;
        result_.rounds = rounds_;
        return result_;
      }
      ready_.pop();
      advance(lane, time);
    }
    TUTTI_CHECK(parked_.empty());  // as verify() has proven
    const auto longest = std::max_element(busy_.begin(), busy_.end());
    if (longest != busy_.end() && *longest > 0) {
      result_.bottleneck = static_cast<int>(longest - busy_.begin());
      result_.bottleneck_us = *longest;
    }
    result_.rounds = rounds_;
    return result_;
  }

 private:
  struct Position {
    int call = 0;
    int round = 0;
    std::size_t step = 0;
  };
  // Of a signal, or of what was put before it.
  struct Arrival {
    double us = 0;
    double bytes = 0;  // that came with it
  };
  struct Core {
    int ranks = 0;
    int owner = -1;           // the lane that has it until it waits, of all ranks' lanes; -1: none
    int last = -1;            // the rank that had it last
    double free = 0;          // from when on
    std::deque<int> waiting;  // lanes of all ranks
  };

  using LinkKey = std::uint64_t;
  LinkKey key(int from, int to, int lane, plan::Channel channel) const {
    const auto ranks = static_cast<LinkKey>(plan_.ranks);
    return ((static_cast<LinkKey>(from) * ranks + static_cast<LinkKey>(to)) * static_cast<LinkKey>(lanes_) +
            static_cast<LinkKey>(lane)) *
               plan::kChannels +
           static_cast<LinkKey>(channel);
  }

  /// Steps of a lane until it must let others go first.
  void advance(int row, double now) {
    const int rank = row / lanes_;
    const std::vector<Step>& steps = plan_.of_rank[at(rank)].lanes[at(row % lanes_)].steps;
    Position& position = positions_[at(row)];
    if (position.call == 0 && position.round == 0 && position.step == 0) now = std::max(now, constants_.call_us);
    Core* core = shared_core_of(rank);
    if (core != nullptr) {
      if (core->owner >= 0 && core->owner != row) {
        core->waiting.push_back(row);
        return;
      }
      const bool changes = core->last >= 0 && core->last != rank;
      now = std::max(now, core->free + (changes ? constants_.switch_us : 0));
      core->owner = row;
      core->last = rank;
    }
    while (true) {
      if (position.step == steps.size()) {
        position.step = 0;
        if (++position.round == rounds_) {
          position.round = 0;
          if (++position.call == calls_) break;
          now += constants_.call_us + tells_[at(rank)] * constants_.message_us;
        }
        continue;
      }
      const Step& step = steps[position.step];
      const bool skipped = (step.guard == Guard::from_third_round && position.round < 2) ||
                           (step.guard == Guard::until_third_to_last && position.round + 2 >= rounds_);
      if (skipped) {
        ++position.step;
        continue;
      }
      // Whoever is first in time takes the links first.
      if (!ready_.empty() && ready_.top().first < now && step.kind != StepKind::signal) {
        ready_.emplace(now, row);
        return;
      }
      if (step.kind == StepKind::wait) {
        const LinkKey link = key(step.peer, rank, row % lanes_, step.channel);
        const auto pending = signals_.find(link);
        if (pending == signals_.end() || pending->second.empty()) {
          parked_.emplace(link, std::pair(now, row));
          leave(core, now);
          return;
        }
        const Arrival arrival = pending->second.front();
        if (core != nullptr && arrival.us > now) {
          ready_.emplace(arrival.us, row);
          leave(core, now);
          return;
        }
        now = received(arrival, step, rank, now) + constants_.step_us;
        pending->second.pop_front();
      } else {
        now = carry_out(step, rank, row % lanes_, now + constants_.step_us);
      }
      ++position.step;
    }
    leave(core, now);
    result_.us = std::max(result_.us, now);
  }

  /// Who has nothing to say to a peer on another host from which it hears something must tell it of each call.
  void count_tells() {
    std::set<std::pair<int, int>> says;
    for (int rank = 0; rank < plan_.ranks; ++rank) {
      for (const plan::Lane& lane : plan_.of_rank[at(rank)].lanes) {
        for (const Step& step : lane.steps) {
          const bool always = step.kind == StepKind::signal && step.guard == Guard::always;
          if (always && away(rank, step.peer)) says.insert({rank, step.peer});
        }
      }
    }
    tells_.assign(at(plan_.ranks), 0);
    for (const auto& [rank, peer] : says) {
      if (says.contains({peer, rank})) continue;
      ++tells_[at(peer)];
      ++tells_[at(rank)];  // which receives it
    }
  }

  Core* shared_core_of(int rank) {
    const int core = core_of_[at(rank)];
    return core >= 0 && (cores_[at(core)].ranks > 1 || lanes_ > 1) ? &cores_[at(core)] : nullptr;
  }

  /// Who has the core gives it to the next one.
  void leave(Core* core, double now) {
    if (core == nullptr) return;
    core->owner = -1;
    core->free = now;
    if (core->waiting.empty()) return;
    ready_.emplace(now, core->waiting.front());
    core->waiting.pop_front();
  }

  double by_hand_us(double bytes) const {
    const double gb_per_s = constants_.message_gb_per_s * speed_up_;
    return gb_per_s > 0 ? bytes / gb_per_s * kUsPerByteAtOneGb : 0;
  }
  bool away(int rank, int peer) const { return graph_.host_of(rank) != graph_.host_of(peer); }

  /// When a rank that waits from `now` on goes on.
  double received(const Arrival& arrival, const Step& step, int rank, double now) const {
    if (!away(rank, step.peer)) return std::max(now, arrival.us);
    return std::max(now + by_hand_us(arrival.bytes), arrival.us) + constants_.message_us;
  }

  double carry_out(const Step& step, int rank, int lane, double now) {
    switch (step.kind) {
      case StepKind::open: return now + route(step.peer, rank, lane).latency_us;
      case StepKind::signal: return signal(step, rank, lane, now);
      case StepKind::put: return put(step, rank, lane, now);
      case StepKind::copy:
      case StepKind::reduce: return work(step, rank, lane, now);
      case StepKind::wait: break;
    }
    return now;
  }

  double signal(const Step& step, int rank, int lane, double now) {
    if (away(rank, step.peer)) now += constants_.message_us;
    Arrival arrival{now + route(rank, step.peer, lane).latency_us, 0};
    if (const auto sent = arrives_.find(key(rank, step.peer, lane, plan::Channel::data)); sent != arrives_.end()) {
      arrival.us = std::max(arrival.us, sent->second.us);
      std::swap(arrival.bytes, sent->second.bytes);
    }
    const LinkKey link = key(rank, step.peer, lane, step.channel);
    signals_[link].push_back(arrival);
    if (const auto waiting = parked_.find(link); waiting != parked_.end()) {
      // On a core of its own it has waited since then.
      const double since = waiting->second.first;
      ready_.emplace(shared_core_of(step.peer) != nullptr ? std::max(since, arrival.us) : since,
                     waiting->second.second);
      parked_.erase(waiting);
    }
    return now;
  }

  double put(const Step& step, int rank, int lane, double now) {
    const Route& way = route(rank, step.peer, lane);
    const double bytes = bytes_of(step.sources[0]);
    const double end = transfer(way, bytes, now);
    Arrival& arrival = arrives_[key(rank, step.peer, lane, plan::Channel::data)];
    arrival.us = std::max(arrival.us, end + way.latency_us);
    if (away(rank, step.peer)) {
      arrival.bytes += bytes;
      result_.bytes_across += bytes;
      return now + by_hand_us(bytes) + (bytes > static_cast<double>(options_.inlined) ? constants_.put_us : 0);
    }
    const bool by_others = graph_.topology().ranks[at(rank)].kind == topology::PlaceKind::device;
    return by_others ? now + constants_.put_us : end;
  }

  double work(const Step& step, int rank, int lane, double now) {
    double at_home = 0;
    for (const auto* ranges : {&step.sources, &step.destinations}) {
      for (const Range& range : *ranges) {
        if (range.rank == rank) {
          at_home += bytes_of(range) / 2;
          continue;
        }
        const bool reads = ranges == &step.sources;
        const Route& way = reads ? route(range.rank, rank, lane) : route(rank, range.rank, lane);
        now = transfer(way, bytes_of(range), now) + (reads ? way.latency_us : 0);
      }
    }
    const bool onto_itself = step.kind == StepKind::copy && step.sources[0] == step.destinations[0];
    if (onto_itself || at_home == 0) return now;
    return transfer(graph_.at_home(rank), at_home, now);
  }

  double transfer(const Route& way, double bytes, double now) {
    double begin = now;
    double longest = 0;
    for (const int resource : way.resources) {
      const double time = bytes / gb_per_s_[at(resource)] * kUsPerByteAtOneGb;
      begin = std::max(begin, free_[at(resource)]);
      free_[at(resource)] = std::max(now, free_[at(resource)]) + time;
      busy_[at(resource)] += time;
      longest = std::max(longest, time);
    }
    return begin + longest;
  }

  const Route& route(int from, int to, int lane) const {
    return graph_.route(from, to, options_.lanes_are_rails ? lane : rail_of_[at(from)]);
  }

  double bytes_of(const Range& range) const { return range.count * piece_bytes_; }

  const Plan& plan_;
  const Graph& graph_;
  const CostOptions& options_;
  const Constants& constants_;
  int rounds_;
  int calls_;
  double piece_bytes_;  // of a slice
  int lanes_;
  double speed_up_ = 1;           // by caches
  std::vector<double> gb_per_s_;  // by resource
  std::vector<int> core_of_;      // by rank; -1: it is on none
  std::vector<Core> cores_;
  std::vector<int> tells_;    // by rank: messages for each call
  std::vector<double> free_;  // by resource: from when on
  std::vector<double> busy_;  // by resource: how long in all
  std::vector<int> rail_of_;  // by rank
  std::vector<Position> positions_;
  using Ready = std::pair<double, int>;  // time, lane of all ranks
  std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready_;
  std::unordered_map<LinkKey, std::deque<Arrival>> signals_;
  std::unordered_map<LinkKey, Arrival> arrives_;                // since the last signal
  std::unordered_map<LinkKey, std::pair<double, int>> parked_;  // who waits, since when
  Estimate result_;
};

/// As the executor does it (executor/prepared.cc).
int rounds_of(const Plan& plan, double piece_bytes, const CostOptions& options) {
  int rounds = 1;
  for (const int slots : {plan.slots, plan.published}) {
    if (slots == 0) continue;
    const double half = static_cast<double>(options.scratch_half) / slots;
    const double slice = static_cast<double>(options.slice);
    if (piece_bytes <= std::min(half, slice)) continue;
    rounds = std::max(rounds, static_cast<int>(std::ceil(piece_bytes / std::max(1.0, std::min(half / 2, slice)))));
  }
  return rounds;
}

}  // namespace

Estimate price(const Plan& plan, const Graph& graph, const CostOptions& options) {
  TUTTI_CHECK_EQ(plan.ranks, graph.ranks());
  const double piece = static_cast<double>(options.bytes) / plan.pieces;
  const int rounds = rounds_of(plan, piece, options);
  const double slice = piece / rounds;
  Estimate estimate = Simulation(plan, graph, options, std::min(rounds, kMostRounds), 1, slice).run();
  if (rounds <= kMostRounds && options.in_a_row) {
    const Estimate few = Simulation(plan, graph, options, rounds, kFewCalls, slice).run();
    const Estimate many = Simulation(plan, graph, options, rounds, kManyCalls, slice).run();
    estimate.us = (many.us - few.us) / (kManyCalls - kFewCalls);
    estimate.bottleneck_us = (many.bottleneck_us - few.bottleneck_us) / (kManyCalls - kFewCalls);
  }
  if (rounds <= kMostRounds || estimate.us > options.give_up_us) return estimate;
  const Estimate before = Simulation(plan, graph, options, kMostRounds - 2, 1, slice).run();
  const double more = (rounds - kMostRounds) / 2.0;
  estimate.us += more * (estimate.us - before.us);
  estimate.bytes_across += more * (estimate.bytes_across - before.bytes_across);
  estimate.bottleneck_us += more * (estimate.bottleneck_us - before.bottleneck_us);
  estimate.rounds = rounds;
  return estimate;
}

}  // namespace tutti::planner
