#include "collectives/planner/cost.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <queue>
#include <utility>

#include "base/check.h"
#include "base/index.h"

namespace tutti::planner {

using plan::Guard;
using plan::StepKind;
using topology::Graph;

namespace {

constexpr int kMostRounds = 6;
constexpr std::size_t kManySteps = 500000;  // of hundreds of ranks: a round takes a tenth of a second
constexpr int kMostRoundsOfMany = 4;
// Larger slots lie elsewhere in each call ("Slot rotation", executor/host/plan_walker.h).
constexpr double kRotateFromBytes = 8192;
constexpr std::uint64_t kShareOfOutputs = 4;  // of a rank's cache: larger ones go past it (communicator.cc)
constexpr double kNotYet = -1;
constexpr double kLateOfSwitch = 0.25;  // by which each rank begins later than the one before
constexpr int kFewCalls = 4;            // of those in a row
constexpr int kManyCalls = 16;
constexpr double kUsPerByteAtOneGb = 1e-3;  // 1 byte at 1 GB/s takes 1 ns

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

/// The part of a simulation that depends on the graph and the options alone.
class Machine {
 public:
  Machine(const FlatPlan& plan, const Graph& graph, const CostOptions& options) {
    std::map<std::pair<int, int>, int> cores;
    for (const topology::Place& place : graph.topology().ranks) {
      const bool on_core = place.kind == topology::PlaceKind::core;
      on_device.push_back(place.kind == topology::PlaceKind::device);
      const topology::Place core = topology::on_machine(graph.topology(), place);
      core_of.push_back(
          on_core ? cores.try_emplace({core.host, core.index}, static_cast<int>(cores.size())).first->second : -1);
    }
    ranks_on_core.resize(cores.size());
    for (const int core : core_of) {
      if (core >= 0) ++ranks_on_core[at(core)];
    }
    for (const int ranks : ranks_on_core) most_on_core = std::max(most_on_core, ranks);
    const double in_caches = bytes_in_caches(plan, graph, options);
    speed_up = speed_up_of(options.constants.copying, in_caches);
    const auto own_cache = static_cast<double>(topology::smallest_cache(graph.topology().hosts.front(), 2));
    sums_show = own_cache == 0 || in_caches <= own_cache;
    for (int resource = 0; resource < graph.resources(); ++resource) {
      const double gb_per_s = graph.gb_per_s_of(resource) * (graph.is_of_cores(resource) ? speed_up : 1);
      us_per_byte.push_back(kUsPerByteAtOneGb / gb_per_s);
    }
  }

  /// Bytes that each core would find in its caches again in the next call. Large outputs are written past the caches
  /// (executor/prepared.h, "streaming").
  double bytes_in_caches(const FlatPlan& plan, const Graph& graph, const CostOptions& options) const {
    const auto& places = graph.topology().ranks;
    const auto of_first_host =
        std::count_if(places.begin(), places.end(), [](const topology::Place& place) { return place.host == 0; });
    const auto alone = static_cast<std::size_t>(std::count(core_of.begin(), core_of.end(), -1));
    const std::uint64_t share =
        topology::cache_share(graph.topology().hosts.front(), std::max(static_cast<int>(of_first_host), 1));
    const bool past_caches = share > 0 && options.bytes > share / kShareOfOutputs;
    const double pieces = past_caches ? plan.read : plan.touched;
    return pieces / plan.pieces * static_cast<double>(options.bytes) /
           static_cast<double>(ranks_on_core.size() + alone);
  }

  double speed_up = 1;             // by caches
  bool sums_show = true;           // they are not hidden behind memory
  std::vector<int> core_of;        // by rank; -1: it is on none
  std::vector<bool> on_device;     // by rank
  std::vector<int> ranks_on_core;  // by core
  int most_on_core = 1;
  std::vector<double> us_per_byte;  // by resource
};

class Simulation {
 public:
  /// The extent of the simulation.
  struct Extent {
    int rounds = 1;
    int calls = 1;
    double piece_bytes = 0;  // of a slice
    double price_limit_us = 0;
  };
  Simulation(const FlatPlan& plan, const Machine& machine, const CostOptions& options, const Extent& extent)
      : plan_(plan),
        machine_(machine),
        options_(options),
        constants_(options.constants),
        extent_(extent),
        express_(plan.express && extent.rounds == 1 && options.copies == 1 &&
                 extent.piece_bytes <= static_cast<double>(options.express)),
        core_is_shared_(machine.most_on_core > 1),
        lanes_(plan.lanes * options.copies),
        message_us_per_byte_(
            constants_.message_gb_per_s > 0 ? kUsPerByteAtOneGb / (constants_.message_gb_per_s * machine.speed_up) : 0),
        reduce_us_per_byte_(
            constants_.reduce_gb_per_s > 0 && machine.sums_show ? kUsPerByteAtOneGb / constants_.reduce_gb_per_s : 0),
        cores_(machine.ranks_on_core.size()),
        resources_(machine.us_per_byte.size()),
        links_(at(plan.links * options.copies)),
        begun_(at(plan.ranks * extent.calls), kNotYet),
        watchers_(at(plan.ranks)) {
    for (int row = 0; row < plan.ranks * lanes_; ++row) {
      const int lane = row % lanes_;
      const std::size_t first = at(row / lanes_ * plan.lanes + lane % plan.lanes);
      rows_.push_back({.rank = row / lanes_,
                       .first_link = lane / plan.lanes * plan.links,
                       .first = plan.first_step[first],
                       .end = plan.first_step[first + 1],
                       .step = plan.first_step[first],
                       .gate = plan.first_step[first]});
    }
  }

  Estimate run() {
    for (int row = 0; row < plan_.ranks * lanes_; ++row) ready_.emplace(0, row);
    while (!ready_.empty()) {
      const auto [time, row] = ready_.top();
      if (time > extent_.price_limit_us) {
        result_.us = time;
        return result_;
      }
      ready_.pop();
      advance(row, time);
    }
    TUTTI_CHECK_EQ(parked_, 0);  // as verify() has proven
    const auto longest = std::max_element(resources_.begin(), resources_.end(),
                                          [](const Resource& x, const Resource& y) { return x.busy_us < y.busy_us; });
    if (longest != resources_.end() && longest->busy_us > 0) {
      result_.bottleneck = static_cast<int>(longest - resources_.begin());
      result_.bottleneck_us = longest->busy_us;
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
    std::int32_t move = 0;  // of the step: the next one
    std::int32_t gate = 0;  // the step whose peer is looked at next, of those that it must see before it begins
  };
  // Of a signal, or of what was put before it.
  struct Arrival {
    double us = 0;
    double bytes = 0;  // that came with it
  };
  struct Link {
    Arrival sent;    // since the last signal
    int first = -1;  // signals that no rank has waited for yet, in arrivals_
    int last = -1;
    int waiting = -1;          // a row; -1: none
    double since_us = 0;       // when it came to wait
    double read_us = kNotYet;  // of another host: what has come by then has been read
  };
  struct Signal {
    Arrival arrival;
    int next = -1;
  };
  // A row that waits until a rank has begun a call.
  struct Watcher {
    int row = 0;
    double since_us = 0;
    double latency_us = 0;
  };
  struct Resource {
    double free_us = 0;  // from when on
    double busy_us = 0;  // how long in all
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
    if (row.call == 0 && row.round == 0 && row.step == row.first) {
      // Ranks that share cores would else keep in a step that no two cores keep.
      const double late_us = core_is_shared_ && extent_.calls > 1 ? rank * kLateOfSwitch * constants_.switch_us : 0;
      now = std::max(now, constants_.call_us + late_us);
    }
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
      const bool begins = row.round == 0 && row.step == row.first;
      if (begins && row.gate == row.first) begin(row, now);
      if (row.step == row.end) {
        row.step = row.gate = row.first;
        if (++row.round == extent_.rounds) {
          row.round = 0;
          if (++row.call == extent_.calls) break;
          now += constants_.call_us + plan_.tells[at(rank)] * constants_.message_us;
        }
        continue;
      }
      if (begins && row.gate < row.end) {
        if (core != nullptr && !ready_.empty() && ready_.top().first < now) {
          ready_.emplace(now, number);
          return;
        }
        if (!pass_gate(number, core, now)) return;
      }
      const FlatStep& step = plan_.steps[at(row.step)];
      const bool skipped = (step.guard == Guard::from_third_round && row.round < 2) ||
                           (step.guard == Guard::until_third_to_last && row.round + 2 >= extent_.rounds);
      if (skipped) {
        ++row.step;
        continue;
      }
      // The row that is first in time takes the links first, and what several share.
      const bool shares = step.moves > 0 || (core != nullptr && step.kind != StepKind::signal);
      if (shares && !ready_.empty() && ready_.top().first < now) {
        ready_.emplace(now, number);
        return;
      }
      if (step.kind == StepKind::open) {
        if (!see_begun(step.peer, row.call, step.latency_us, number, core, now)) return;
        now += constants_.step_us;
      } else if (step.kind == StepKind::wait) {
        Link& link = links_[at(row.first_link + step.link)];
        if (link.first < 0) {
          link.waiting = number;
          link.since_us = now;
          ++parked_;
          leave(core, now);
          return;
        }
        const Arrival arrival = arrivals_.all[at(link.first)].arrival;
        if (core != nullptr && arrival.us > now) {
          ready_.emplace(arrival.us, number);
          leave(core, now);
          return;
        }
        now = received(arrival, step, link, now) + constants_.step_us;
        take_first(link);
      } else {
        if (row.move == 0) now += constants_.step_us;
        if (by_hand(step, row)) {
          // One at a time, so that others can use what it leaves of a link.
          now = moved(plan_.moves[at(step.first_move + row.move)], now);
          if (++row.move < step.moves) continue;
          row.move = 0;
          now += step.summed * extent_.piece_bytes * reduce_us_per_byte_;
        }
        now = execute(step, row, now);
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

  /// A rank announces its call. Lanes that wait for that go on.
  void begin(const Row& row, double now) {
    double& begun = begun_[at(row.rank * extent_.calls + row.call)];
    if (begun != kNotYet) return;  // by another of its lanes
    begun = now;
    std::vector<Watcher>& watchers = watchers_[at(row.rank)];
    for (const Watcher& one : watchers) {
      const bool shared = shared_core_of(rows_[at(one.row)].rank) != nullptr;
      ready_.emplace(shared ? std::max(one.since_us, now + one.latency_us) : one.since_us, one.row);
    }
    parked_ -= static_cast<int>(watchers.size());
    watchers.clear();
  }

  /// Whether a row sees by `now`, which is moved on to when it does, that a rank has begun that call. If not it has
  /// given its core away, and goes on when it does.
  bool see_begun(int rank, int call, double latency_us, int number, Core* core, double& now) {
    const double begun = begun_[at(rank * extent_.calls + call)];
    if (begun == kNotYet) {
      watchers_[at(rank)].push_back({number, now, latency_us});
      ++parked_;
      leave(core, now);
      return false;
    }
    const double seen = begun + latency_us;
    if (core != nullptr && seen > now) {
      ready_.emplace(seen, number);
      leave(core, now);
      return false;
    }
    now = std::max(now, seen);
    return true;
  }

  /// Slots are used again: no rank begins a call before those that it shares them with have begun the one before.
  /// Express calls have so many cells that a wait is rare.
  bool pass_gate(int number, Core* core, double& now) {
    Row& row = rows_[at(number)];
    for (; row.gate < row.end; ++row.gate) {
      const FlatStep& step = plan_.steps[at(row.gate)];
      if (row.call == 0 || express_ || step.peer < 0) continue;
      if (!see_begun(step.peer, row.call - 1, step.latency_us, number, core, now)) return false;
    }
    return true;
  }

  /// Gives the core to the next rank that waits for it.
  void leave(Core* core, double now) {
    if (core == nullptr) return;
    core->owner = -1;
    core->free = now;
    if (core->waiting.empty()) return;
    ready_.emplace(now, core->waiting.front());
    core->waiting.pop_front();
  }

  void add_last(Link& link, const Arrival& arrival) {
    int place = arrivals_.unused;
    if (place >= 0) {
      arrivals_.unused = arrivals_.all[at(place)].next;
      arrivals_.all[at(place)] = {arrival, -1};
    } else {
      place = static_cast<int>(arrivals_.all.size());
      arrivals_.all.push_back({arrival, -1});
    }
    (link.first < 0 ? link.first : arrivals_.all[at(link.last)].next) = place;
    link.last = place;
  }

  void take_first(Link& link) {
    const int place = link.first;
    link.first = arrivals_.all[at(place)].next;
    arrivals_.all[at(place)].next = arrivals_.unused;
    arrivals_.unused = place;
  }

  /// Returns when a rank that waits from `now` on goes on.
  double received(const Arrival& arrival, const FlatStep& step, Link& link, double now) const {
    if (!step.away) return std::max(now, arrival.us);
    const double moved = now + arrival.bytes * message_us_per_byte_;
    if (arrival.us <= link.read_us) return moved;  // it came along with one before it
    link.read_us = std::max(moved, arrival.us);
    return link.read_us + constants_.message_us;
  }

  /// Whether the lane is busy until the bytes have moved.
  bool by_hand(const FlatStep& step, const Row& row) const {
    if (step.kind == StepKind::put) return !step.away && !machine_.on_device[at(row.rank)];
    return step.moves > 0;
  }

  double execute(const FlatStep& step, const Row& row, double now) {
    switch (step.kind) {
      case StepKind::signal: return signal(step, row, now);
      case StepKind::put: return put(step, row, now);
      case StepKind::copy:
      case StepKind::reduce:
      case StepKind::open:
      case StepKind::wait: break;
    }
    return now;
  }

  double signal(const FlatStep& step, const Row& row, double now) {
    if (step.away) now += constants_.message_us;
    // What is published goes along, to each peer anew.
    if (express_ && plan_.published > 0) now += slot_reuse_us(extent_.piece_bytes);
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
    const double bytes = plan_.moves[at(step.first_move)].pieces * extent_.piece_bytes;
    const bool by_itself = !by_hand(step, row);
    const double end = by_itself ? moved(plan_.moves[at(step.first_move)], now) : now;
    Arrival& sent = links_[at(row.first_link + step.link)].sent;
    sent.us = std::max(sent.us, end + step.latency_us);
    if (step.away) {
      sent.bytes += bytes;
      result_.bytes_across += bytes;
      const bool goes_along = bytes <= static_cast<double>(options_.inlined);
      return now + bytes * message_us_per_byte_ + (goes_along ? 0 : constants_.put_us);
    }
    return by_itself ? now + constants_.put_us : now;
  }

  double slot_reuse_us(double bytes) const {
    const bool is_small = bytes > 0 && bytes < kRotateFromBytes && constants_.slot_reuse_gb_per_s > 0;
    return is_small ? bytes * kUsPerByteAtOneGb / constants_.slot_reuse_gb_per_s : 0;
  }

  double moved(const Move& one, double now) {
    const double bytes = one.pieces * extent_.piece_bytes;
    if (one.passes) return now + (express_ && plan_.published > 0 ? 0 : slot_reuse_us(bytes));
    double begin = now;
    double longest = 0;
    for (int r = one.first; r < one.first + one.count; ++r) {
      const std::size_t resource = at(plan_.resources[at(r)]);
      const double time = bytes * machine_.us_per_byte[resource];
      Resource& taken = resources_[resource];
      begin = std::max(begin, taken.free_us);
      taken.free_us = std::max(now, taken.free_us) + time;
      taken.busy_us += time;
      longest = std::max(longest, time);
    }
    return begin + longest + (express_ ? 0 : one.latency_us);  // what is published has come with the signal
  }

  const FlatPlan& plan_;
  const Machine& machine_;
  const CostOptions& options_;
  const Constants& constants_;
  const Extent extent_;
  bool express_;
  bool core_is_shared_;
  int lanes_;
  double message_us_per_byte_;
  double reduce_us_per_byte_;
  std::vector<Row> rows_;
  std::vector<Core> cores_;
  std::vector<Resource> resources_;
  std::vector<Link> links_;
  std::vector<double> begun_;                   // by rank and call: when
  std::vector<std::vector<Watcher>> watchers_;  // by rank that they wait for
  struct {
    std::vector<Signal> all;  // of all links
    int unused = -1;          // a list of those that may be used again
  } arrivals_;
  int parked_ = 0;                       // rows that wait for a signal that has not been sent yet
  using Ready = std::pair<double, int>;  // time, row
  std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready_;
  Estimate result_;
};

/// Returns the rounds of the plan, as the executor makes them (executor/prepared.cc).
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
  const Machine machine(plan, graph, options);
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
  if (least.us > options.price_limit_us) return least;
  const int walked = std::min(rounds, plan.steps.size() < kManySteps ? kMostRounds : kMostRoundsOfMany);
  const double others_us = least.us * (rounds - walked) / rounds;
  const bool back_to_back = options.back_to_back && rounds == walked;
  // The first of many calls may take far longer than the later ones: there is no limit.
  const double price_limit_us =
      back_to_back ? std::numeric_limits<double>::infinity() : options.price_limit_us - others_us;
  const auto simulated = [&](int some_rounds, int calls) {
    return Simulation(plan, machine, options, {some_rounds, calls, slice, price_limit_us}).run();
  };
  Estimate estimate = simulated(walked, 1);
  if (back_to_back) {
    const Estimate few = simulated(rounds, kFewCalls);
    const Estimate many = simulated(rounds, kManyCalls);
    estimate.us = (many.us - few.us) / (kManyCalls - kFewCalls);
    estimate.bottleneck_us = (many.bottleneck_us - few.bottleneck_us) / (kManyCalls - kFewCalls);
  }
  estimate.rounds = rounds;
  if (rounds == walked) return estimate;
  if (estimate.us + others_us > options.price_limit_us) {
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
