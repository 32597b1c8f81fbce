#include "collectives/planner/cost.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <map>
#include <queue>

#include "base/check.h"

namespace tutti::planner {

using plan::Guard;
using plan::StepKind;
using topology::Graph;

namespace {

constexpr int kMostRounds = 6;
constexpr std::size_t kManySteps = 500000;  // of hundreds of ranks: a round takes a tenth of a second
constexpr int kMostRoundsOfMany = 4;
constexpr int kFewCalls = 3;  // of those in a row
constexpr int kManyCalls = 7;
constexpr double kUsPerByteAtOneGb = 1e-3;  // 1 byte at 1 GB/s takes 1 ns

std::size_t at(int index) { return static_cast<std::size_t>(index); }

/// How fast a core copies when it works on `bytes`, beside the last figure of the table, which the graph has.
double speed_up_of(const std::vector<Copying>& copying, double bytes) {
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

/// What a graph and the options are to every simulation of a call.
class Machine {
 public:
  Machine(const Graph& graph, const CostOptions& options)
      : speed_up(speed_up_of(options.constants.copying, 2.0 * static_cast<double>(options.bytes))) {
    std::map<std::pair<int, int>, int> cores;
    for (const topology::Place& place : graph.topology().ranks) {
      const bool on_core = place.kind == topology::PlaceKind::core;
      on_device.push_back(place.kind == topology::PlaceKind::device);
      core_of.push_back(
          on_core ? cores.try_emplace({place.host, place.index}, static_cast<int>(cores.size())).first->second : -1);
    }
    ranks_on_core.resize(cores.size());
    for (const int core : core_of) {
      if (core >= 0) ++ranks_on_core[at(core)];
    }
    for (int resource = 0; resource < graph.resources(); ++resource) {
      const double gb_per_s = graph.gb_per_s_of(resource) * (graph.is_of_cores(resource) ? speed_up : 1);
      us_per_byte.push_back(kUsPerByteAtOneGb / gb_per_s);
    }
  }

  double speed_up = 1;              // by caches
  std::vector<int> core_of;         // by rank; -1: it is on none
  std::vector<bool> on_device;      // by rank
  std::vector<int> ranks_on_core;   // by core
  std::vector<double> us_per_byte;  // by resource
};

class Simulation {
 public:
  Simulation(const FlatPlan& plan, const Machine& machine, const CostOptions& options, int rounds, int calls,
             double piece_bytes, double give_up_us)
      : plan_(plan),
        machine_(machine),
        options_(options),
        constants_(options.constants),
        rounds_(rounds),
        calls_(calls),
        piece_bytes_(piece_bytes),
        give_up_us_(give_up_us),
        lanes_(plan.lanes * options.copies),
        message_us_per_byte_(
            constants_.message_gb_per_s > 0 ? kUsPerByteAtOneGb / (constants_.message_gb_per_s * machine.speed_up) : 0),
        cores_(machine.ranks_on_core.size()),
        free_(machine.us_per_byte.size(), 0),
        busy_(machine.us_per_byte.size(), 0),
        links_(at(plan.links * options.copies)) {
    for (int row = 0; row < plan.ranks * lanes_; ++row) {
      const int lane = row % lanes_;
      const std::size_t first = at(row / lanes_ * plan.lanes + lane % plan.lanes);
      rows_.push_back({.rank = row / lanes_,
                       .first_link = lane / plan.lanes * plan.links,
                       .first = plan.first_step[first],
                       .end = plan.first_step[first + 1],
                       .step = plan.first_step[first]});
    }
  }

  Estimate run() {
    for (int row = 0; row < plan_.ranks * lanes_; ++row) ready_.emplace(0, row);
    while (!ready_.empty()) {
      const auto [time, row] = ready_.top();
      if (time > give_up_us_) {
        result_.us = time;
        return result_;
      }
      ready_.pop();
      advance(row, time);
    }
    TUTTI_CHECK_EQ(parked_, 0);  // as verify() has proven
    const auto longest = std::max_element(busy_.begin(), busy_.end());
    if (longest != busy_.end() && *longest > 0) {
      result_.bottleneck = static_cast<int>(longest - busy_.begin());
      result_.bottleneck_us = *longest;
    }
    return result_;
  }

 private:
  // A lane of a rank, and where it stands.
  struct Row {
    int rank = 0;
    int first_link = 0;
    std::int32_t first = 0;  // steps
    std::int32_t end = 0;
    std::int32_t step = 0;
    int round = 0;
    int call = 0;
  };
  // Of a signal, or of what was put before it.
  struct Arrival {
    double us = 0;
    double bytes = 0;  // that came with it
  };
  struct Link {
    Arrival sent;    // since the last signal
    int first = -1;  // signals that nobody has waited for yet, in arrivals_
    int last = -1;
    int waiting = -1;     // a row; -1: none
    double since_us = 0;  // when it came to wait
  };
  struct Signal {
    Arrival arrival;
    int next = -1;
  };
  struct Core {
    int owner = -1;           // the row that has it until it waits; -1: none
    int last = -1;            // the rank that had it last
    double free = 0;          // from when on
    std::deque<int> waiting;  // rows
  };

  /// Steps of a lane until it must let others go first.
  void advance(int number, double now) {
    Row& row = rows_[at(number)];
    const int rank = row.rank;
    if (row.call == 0 && row.round == 0 && row.step == row.first) now = std::max(now, constants_.call_us);
    Core* core = shared_core_of(rank);
    if (core != nullptr) {
      if (core->owner >= 0 && core->owner != number) {
        core->waiting.push_back(number);
        return;
      }
      const bool changes = core->last >= 0 && core->last != rank;
      now = std::max(now, core->free + (changes ? constants_.switch_us : 0));
      core->owner = number;
      core->last = rank;
    }
    while (true) {
      if (row.step == row.end) {
        row.step = row.first;
        if (++row.round == rounds_) {
          row.round = 0;
          if (++row.call == calls_) break;
          now += constants_.call_us + plan_.tells[at(rank)] * constants_.message_us;
        }
        continue;
      }
      const FlatStep& step = plan_.steps[at(row.step)];
      const bool skipped = (step.guard == Guard::from_third_round && row.round < 2) ||
                           (step.guard == Guard::until_third_to_last && row.round + 2 >= rounds_);
      if (skipped) {
        ++row.step;
        continue;
      }
      // Whoever is first in time takes the links first, and what several share.
      const bool shares = step.moves > 0 || (core != nullptr && step.kind != StepKind::signal);
      if (shares && !ready_.empty() && ready_.top().first < now) {
        ready_.emplace(now, number);
        return;
      }
      if (step.kind == StepKind::wait) {
        Link& link = links_[at(row.first_link + step.link)];
        if (link.first < 0) {
          link.waiting = number;
          link.since_us = now;
          ++parked_;
          leave(core, now);
          return;
        }
        const Arrival arrival = arrivals_[at(link.first)].arrival;
        if (core != nullptr && arrival.us > now) {
          ready_.emplace(arrival.us, number);
          leave(core, now);
          return;
        }
        now = received(arrival, step, now) + constants_.step_us;
        take_first(link);
      } else {
        now = carry_out(step, row, now + constants_.step_us);
      }
      ++row.step;
    }
    leave(core, now);
    result_.us = std::max(result_.us, now);
  }

  Core* shared_core_of(int rank) {
    const int core = machine_.core_of[at(rank)];
    return core >= 0 && (machine_.ranks_on_core[at(core)] > 1 || lanes_ > 1) ? &cores_[at(core)] : nullptr;
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

  void add_last(Link& link, const Arrival& arrival) {
    int place = free_arrival_;
    if (place >= 0) {
      free_arrival_ = arrivals_[at(place)].next;
      arrivals_[at(place)] = {arrival, -1};
    } else {
      place = static_cast<int>(arrivals_.size());
      arrivals_.push_back({arrival, -1});
    }
    (link.first < 0 ? link.first : arrivals_[at(link.last)].next) = place;
    link.last = place;
  }

  void take_first(Link& link) {
    const int place = link.first;
    link.first = arrivals_[at(place)].next;
    arrivals_[at(place)].next = free_arrival_;
    free_arrival_ = place;
  }

  /// When a rank that waits from `now` on goes on.
  double received(const Arrival& arrival, const FlatStep& step, double now) const {
    if (!step.away) return std::max(now, arrival.us);
    return std::max(now + arrival.bytes * message_us_per_byte_, arrival.us) + constants_.message_us;
  }

  double carry_out(const FlatStep& step, const Row& row, double now) {
    switch (step.kind) {
      case StepKind::open: return now + step.latency_us;
      case StepKind::signal: return signal(step, row, now);
      case StepKind::put: return put(step, row, now);
      case StepKind::copy:
      case StepKind::reduce: return move(step, now);
      case StepKind::wait: break;
    }
    return now;
  }

  double signal(const FlatStep& step, const Row& row, double now) {
    if (step.away) now += constants_.message_us;
    Arrival& sent = links_[at(row.first_link + step.data_link)].sent;
    const Arrival arrival{std::max(now + step.latency_us, sent.us), sent.bytes};
    sent.bytes = 0;
    Link& link = links_[at(row.first_link + step.link)];
    add_last(link, arrival);
    if (link.waiting >= 0) {
      // On a core of its own it has waited since then.
      const bool shared = shared_core_of(step.peer) != nullptr;
      ready_.emplace(shared ? std::max(link.since_us, arrival.us) : link.since_us, link.waiting);
      link.waiting = -1;
      --parked_;
    }
    return now;
  }

  double put(const FlatStep& step, const Row& row, double now) {
    const double bytes = plan_.moves[at(step.first_move)].pieces * piece_bytes_;
    const double end = move(step, now);
    Arrival& sent = links_[at(row.first_link + step.link)].sent;
    sent.us = std::max(sent.us, end + step.latency_us);
    if (step.away) {
      sent.bytes += bytes;
      result_.bytes_across += bytes;
      const bool goes_along = bytes <= static_cast<double>(options_.inlined);
      return now + bytes * message_us_per_byte_ + (goes_along ? 0 : constants_.put_us);
    }
    return machine_.on_device[at(row.rank)] ? now + constants_.put_us : end;
  }

  /// All that a step moves, one after the other.
  double move(const FlatStep& step, double now) {
    for (int i = step.first_move; i < step.first_move + step.moves; ++i) {
      const Move& one = plan_.moves[at(i)];
      const double bytes = one.pieces * piece_bytes_;
      double begin = now;
      double longest = 0;
      for (int r = one.first; r < one.first + one.count; ++r) {
        const std::size_t resource = at(plan_.resources[at(r)]);
        const double time = bytes * machine_.us_per_byte[resource];
        begin = std::max(begin, free_[resource]);
        free_[resource] = std::max(now, free_[resource]) + time;
        busy_[resource] += time;
        longest = std::max(longest, time);
      }
      now = begin + longest + one.latency_us;
    }
    return now;
  }

  const FlatPlan& plan_;
  const Machine& machine_;
  const CostOptions& options_;
  const Constants& constants_;
  int rounds_;
  int calls_;
  double piece_bytes_;  // of a slice
  double give_up_us_;
  int lanes_;
  double message_us_per_byte_;
  std::vector<Row> rows_;
  std::vector<Core> cores_;
  std::vector<double> free_;  // by resource: from when on
  std::vector<double> busy_;  // by resource: how long in all
  std::vector<Link> links_;
  std::vector<Signal> arrivals_;         // of all links
  int free_arrival_ = -1;                // a list of those that may be used again
  int parked_ = 0;                       // who wait for a signal that nobody has sent yet
  using Ready = std::pair<double, int>;  // time, row
  std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready_;
  Estimate result_;
};

/// As the executor does it (executor/prepared.cc).
int rounds_of(const FlatPlan& plan, double piece_bytes, const CostOptions& options) {
  int rounds = 1;
  for (const int slots : {plan.slots * options.copies, plan.published * options.copies}) {
    if (slots == 0) continue;
    const double half = static_cast<double>(options.scratch_half) / slots;
    const double slice = static_cast<double>(options.slice);
    if (piece_bytes <= std::min(half, slice)) continue;
    rounds = std::max(rounds, static_cast<int>(std::ceil(piece_bytes / std::max(1.0, std::min(half / 2, slice)))));
  }
  return rounds;
}

}  // namespace

Estimate price(const FlatPlan& plan, const Graph& graph, const CostOptions& options) {
  TUTTI_CHECK_EQ(plan.ranks, graph.ranks());
  const Machine machine(graph, options);
  const double piece = static_cast<double>(options.bytes) / (plan.pieces * options.copies);
  const int rounds = rounds_of(plan, piece, options);
  const double slice = piece / rounds;
  // What the busiest resource takes is the least that a round can take.
  Estimate least{.rounds = rounds};
  for (std::size_t resource = 0; resource < plan.moved.size(); ++resource) {
    least.bottleneck_us = std::max(
        least.bottleneck_us, plan.moved[resource] * options.copies * slice * rounds * machine.us_per_byte[resource]);
  }
  least.us = least.bottleneck_us;
  if (least.us > options.give_up_us) return least;
  const int walked = std::min(rounds, plan.steps.size() < kManySteps ? kMostRounds : kMostRoundsOfMany);
  const double others_us = least.us * (rounds - walked) / rounds;
  const auto simulated = [&](int some_rounds, int calls) {
    return Simulation(plan, machine, options, some_rounds, calls, slice, options.give_up_us - others_us).run();
  };
  Estimate estimate = simulated(walked, 1);
  if (rounds == walked && options.in_a_row) {
    const Estimate few = simulated(rounds, kFewCalls);
    const Estimate many = simulated(rounds, kManyCalls);
    estimate.us = (many.us - few.us) / (kManyCalls - kFewCalls);
    estimate.bottleneck_us = (many.bottleneck_us - few.bottleneck_us) / (kManyCalls - kFewCalls);
  }
  estimate.rounds = rounds;
  if (rounds == walked) return estimate;
  if (estimate.us + others_us > options.give_up_us) {
    estimate.us += others_us;
    return estimate;
  }
  const Estimate before = simulated(walked - 2, 1);
  const double more = (rounds - walked) / 2.0;
  estimate.us = std::max(estimate.us + more * (estimate.us - before.us), least.us);
  estimate.bytes_across += more * (estimate.bytes_across - before.bytes_across);
  estimate.bottleneck_us += more * (estimate.bottleneck_us - before.bottleneck_us);
  return estimate;
}

Estimate price(const plan::Plan& plan, const Graph& graph, const CostOptions& options) {
  return price(FlatPlan(plan, graph, {}), graph, options);
}

}  // namespace tutti::planner
