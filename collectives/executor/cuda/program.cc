#include "collectives/executor/cuda/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>

#include "base/check.h"

namespace tutti::executor::cuda {

using plan::is_user;
using plan::Plan;
using plan::Range;
using plan::Space;
using plan::Step;
using plan::StepKind;

namespace {

bool moves(StepKind kind) { return kind == StepKind::put || kind == StepKind::copy || kind == StepKind::reduce; }

bool publishes(const plan::Lane& lane) {
  return std::any_of(lane.steps.begin(), lane.steps.end(), [](const Step& step) {
    return !step.destinations.empty() && step.destinations.front().space == Space::published;
  });
}

// In express calls nothing is published in memory: what would be goes into the peers' cells straight from where it is.
// That serves where a rank publishes one thing, by one copy out of a caller's buffer, and then moves nothing before its
// last signal, so that the buffer still holds it.
bool publishes_straight(const plan::Lane& lane) {
  if (!publishes(lane)) return true;
  const auto copy = std::find_if(lane.steps.begin(), lane.steps.end(), [](const Step& s) { return moves(s.kind); });
  if (copy->kind != StepKind::copy || copy->destinations.size() != 1 || !is_user(copy->sources.front().space) ||
      copy->destinations.front().space != Space::published) {
    return false;
  }
  const auto last_signal =
      std::find_if(lane.steps.rbegin(), lane.steps.rend(), [](const Step& s) { return s.kind == StepKind::signal; });
  return std::none_of(std::next(copy), last_signal.base() > copy ? last_signal.base() : std::next(copy),
                      [](const Step& s) { return moves(s.kind); });
}

bool serves_express(const Plan& plan) {
  return std::all_of(plan.of_rank.begin(), plan.of_rank.end(), [](const plan::RankPlan& rank) {
    return std::all_of(rank.lanes.begin(), rank.lanes.end(), publishes_straight);
  });
}

// Whether data goes along when `from` signals `to` in an express call.
bool brings_data(const Plan& plan, int from, int to) {
  const plan::Lane& lane = plan.of_rank[static_cast<std::size_t>(from)].lanes.front();
  if (publishes(lane)) return true;
  return std::any_of(lane.steps.begin(), lane.steps.end(), [&](const Step& step) {
    return std::any_of(step.destinations.begin(), step.destinations.end(),
                       [&](const Range& range) { return range.space == Space::scratch && range.rank == to; });
  });
}

class Flattener {
 public:
  Flattener(const Prepared& prepared, const UnevenPieces* uneven) : p_(prepared), uneven_(uneven) {}

  std::vector<std::byte> run() {
    for (const auto& lane : p_.lanes) {
      lanes_.push_back({static_cast<std::uint32_t>(steps_.size()), 0});
      published_ = nullptr;
      run_ = {};
      for (const PreparedStep& step : lane) {
        if (p_.rounds == 1 && step.guard != plan::Guard::always) continue;  // never runs
        if (moves(step.kind)) {
          add_data(step);
        } else {
          add_sync(step);
        }
      }
      lanes_.back().step_count = static_cast<std::uint32_t>(steps_.size()) - lanes_.back().steps;
    }
    return assemble();
  }

 private:
  const PreparedRange* ranges_of(const PreparedStep& step) const { return p_.ranges.data() + step.sources; }

  std::size_t elements_of(const PreparedStep& step, int i) const {
    if (uneven_ == nullptr) return p_.piece_elements(step.piece + i);
    const PreparedRange* range = ranges_of(step);
    while (!is_user(range->range.space)) ++range;
    return uneven_->share_of(range->range, i).size;
  }

  ProgramRange range_of(const PreparedRange& from, int pieces) {
    ProgramRange to;
    to.raw_input = from.raw_input;
    to.rank = static_cast<std::int16_t>(from.range.rank);
    to.slot = from.range.first;
    const bool own = from.range.rank == p_.rank;
    switch (from.range.space) {
      case Space::input: to.place = own ? Place::input : Place::peer_input; break;
      case Space::output: to.place = own ? Place::output : Place::peer_output; break;
      case Space::scratch:
        to.place = !p_.express ? Place::scratch : own ? Place::arrived : Place::depart;
        if (p_.express && own)
          to.rank = static_cast<std::int16_t>(static_cast<int>(from.base) % p_.ranks);  // the sender
        break;
      case Space::published: to.place = p_.express ? Place::arrived : Place::published; break;
    }
    if (is_user(from.range.space)) {
      to.offsets = static_cast<std::uint32_t>(numbers_.size());
      for (int i = 0; i < pieces; ++i) {
        numbers_.push_back(uneven_ != nullptr
                               ? uneven_->share_of(from.range, i).offset
                               : p_.piece_begin(p_.placement_of(from.range.space), from.range.first + i));
      }
    }
    return to;
  }

  void add_data(const PreparedStep& from) {
    const PreparedRange* ranges = ranges_of(from);
    if (p_.express && ranges[from.source_count].range.space == Space::published) {
      published_ = &from;  // goes with the signals
      return;
    }
    ProgramStep to = data_step(from);
    for (std::uint32_t i = 0; i < from.source_count + from.destination_count; ++i) {
      const bool own_published =
          p_.express && ranges[i].range.space == Space::published && ranges[i].range.rank == p_.rank;
      ranges_.push_back(range_of(own_published ? ranges_of(*published_)[0] : ranges[i], from.pieces));
    }
    to.sources = static_cast<std::uint16_t>(from.source_count);
    to.destinations = static_cast<std::uint16_t>(from.destination_count);
    // premul_sum multiplies what is only copied, too.
    to.verb = from.kind == StepKind::reduce || p_.shape.op == ReduceOp::premul_sum ? Verb::reduce : Verb::move;
    to.last = from.kind == StepKind::reduce && from.last;
    reduces_ |= to.verb == Verb::reduce;
    steps_.push_back(to);
    run_ = {};
  }

  ProgramStep data_step(const PreparedStep& from) {
    ProgramStep to;
    to.guard = static_cast<std::uint8_t>(from.guard);
    to.ranges = static_cast<std::uint32_t>(ranges_.size());
    to.pieces = from.pieces;
    to.sizes = static_cast<std::uint32_t>(numbers_.size());
    for (int i = 0; i < from.pieces; ++i) numbers_.push_back(elements_of(from, i));
    return to;
  }

  // Signals to several peers in a row become one step, and so do waits and opens: a thread for each peer.
  void add_sync(const PreparedStep& from) {
    if (p_.express && from.kind == StepKind::signal && published_ != nullptr) return send_published(from.peer);
    Verb verb = from.kind == StepKind::open ? Verb::open : from.kind == StepKind::signal ? Verb::signal : Verb::wait;
    if (p_.express && verb == Verb::signal) {
      if (brings_data(*p_.plan, p_.rank, from.peer)) return;
      verb = Verb::flag;
    } else if (p_.express && verb == Verb::wait) {
      verb = brings_data(*p_.plan, from.peer, p_.rank) ? Verb::check : Verb::expect;
    }
    ProgramStep to;
    to.verb = verb;
    to.guard = static_cast<std::uint8_t>(from.guard);
    to.channel = from.channel;
    to.peers = static_cast<std::uint32_t>(peers_.size());
    peers_.push_back(from.peer);
    if (!run_.open || run_.verb != verb || run_.guard != to.guard || run_.channel != to.channel) {
      steps_.push_back(to);
      run_ = {true, verb, to.guard, to.channel};
    }
    ++steps_.back().peer_count;
  }

  void send_published(int peer) {
    if (!run_.open || run_.verb != Verb::move) {
      ProgramStep to = data_step(*published_);
      const ProgramRange source = range_of(ranges_of(*published_)[0], published_->pieces);
      to.sources = 1;
      ranges_.push_back(source);
      steps_.push_back(to);
      run_ = {true, Verb::move, 0, 0};
    }
    ProgramRange cell;
    cell.place = Place::depart;
    cell.rank = static_cast<std::int16_t>(peer);
    ranges_.push_back(cell);
    ++steps_.back().destinations;
  }

  std::vector<std::byte> assemble() const {
    Program head;
    head.ranks = p_.ranks;
    head.rank = p_.rank;
    head.lanes = static_cast<std::int32_t>(lanes_.size());
    head.strips = p_.strips;
    head.rounds = p_.rounds;
    head.element = static_cast<std::uint32_t>(p_.element);
    head.type = p_.shape.type;
    head.op = p_.shape.op;
    head.express = p_.express;
    head.reduces = reduces_;
    const auto slots = [&](const Slots& from) -> ProgramSlots {
      return {from.bytes, from.bytes / static_cast<std::size_t>(p_.strips), from.count, from.sets};
    };
    head.scratch = slots(p_.scratch);
    head.published = slots(p_.published);
    if (p_.express && p_.shape.count > 0) {
      std::size_t largest = 0;
      for (int piece = 0; piece < p_.plan->pieces; ++piece) largest = std::max(largest, p_.piece_elements(piece));
      head.cell_strip_bytes = strip_bytes(largest * p_.element, p_.strips);
    }
    std::vector<std::byte> block(sizeof(Program));
    const auto append = [&](const auto& array) {
      block.resize(round_up(block.size(), 16));
      const std::size_t at = block.size();
      block.resize(at + array.size() * sizeof(array[0]));
      if (!array.empty()) std::memcpy(block.data() + at, array.data(), block.size() - at);
      return static_cast<std::uint32_t>(at);
    };
    head.lanes_at = append(lanes_);
    head.steps_at = append(steps_);
    head.ranges_at = append(ranges_);
    head.peers_at = append(peers_);
    head.numbers_at = append(numbers_);
    block.resize(round_up(block.size(), 16));
    head.bytes = static_cast<std::uint32_t>(block.size());
    std::memcpy(block.data(), &head, sizeof(head));
    return block;
  }

  struct Run {  // of steps that become one
    bool open = false;
    Verb verb = Verb::move;
    std::uint8_t guard = 0;
    std::uint8_t channel = 0;
  };

  const Prepared& p_;
  const UnevenPieces* uneven_;
  const PreparedStep* published_ = nullptr;  // express: the step that fills the published slot
  bool reduces_ = false;
  Run run_;
  std::vector<ProgramLane> lanes_;
  std::vector<ProgramStep> steps_;
  std::vector<ProgramRange> ranges_;
  std::vector<std::int32_t> peers_;
  std::vector<std::uint64_t> numbers_;
};

const char* name_of(Verb verb) {
  constexpr const char* names[] = {"open", "move", "reduce", "signal", "wait", "flag", "expect", "check"};
  return names[static_cast<int>(verb)];
}

const char* name_of(Place place) {
  constexpr const char* names[] = {"input",   "output",    "peer_input", "peer_output",
                                   "scratch", "published", "arrived",    "depart"};
  return names[static_cast<int>(place)];
}

}  // namespace

PlanLimits limits_of(const transport::DeviceWindowSizes& sizes, int strips, std::size_t slice_bytes) {
  return {.scratch_half = sizes.scratch_half,
          .published_half = sizes.published_half,
          .express_bytes = sizes.express_bytes,
          .slice_bytes = slice_bytes,
          .strips = strips};
}

Result<std::shared_ptr<Prepared>> prepare_for_device(const std::shared_ptr<const Plan>& plan, int rank,
                                                     const Shape& shape, const PlanLimits& limits) {
  PlanLimits without = limits;
  if (!serves_express(*plan)) without.express_bytes = 0;
  TUTTI_ASSIGN(std::shared_ptr<Prepared> prepared,
               prepare(plan, rank, shape, without, /*streaming_above=*/~std::size_t{0}));
  for (const auto& lane : prepared->lanes) {
    for (const PreparedStep& step : lane) {
      if (step.source_count + step.destination_count <= static_cast<std::uint32_t>(kMostRanges)) continue;
      return unsupported(fmt::format("{} of {} ranks has a step of {} ranges; a kernel holds at most {}",
                                     plan->algorithm, plan->ranks, step.source_count + step.destination_count,
                                     kMostRanges));
    }
  }
  return prepared;
}

std::vector<std::byte> flatten(const Prepared& prepared, const UnevenPieces* uneven) {
  return Flattener(prepared, uneven).run();
}

std::string print(const Program& program) {
  const auto* base = reinterpret_cast<const std::byte*>(&program);
  const auto* lanes = reinterpret_cast<const ProgramLane*>(base + program.lanes_at);
  const auto* steps = reinterpret_cast<const ProgramStep*>(base + program.steps_at);
  const auto* ranges = reinterpret_cast<const ProgramRange*>(base + program.ranges_at);
  const auto* peers = reinterpret_cast<const std::int32_t*>(base + program.peers_at);
  std::string text =
      fmt::format("rank {} of {}, {} lane(s) of {} strip(s), {} round(s){}\n", program.rank, program.ranks,
                  program.lanes, program.strips, program.rounds, program.express ? ", express" : "");
  for (int lane = 0; lane < program.lanes; ++lane) {
    for (std::uint32_t s = 0; s < lanes[lane].step_count; ++s) {
      const ProgramStep& step = steps[lanes[lane].steps + s];
      text += fmt::format("{} {}", lane, name_of(step.verb));
      for (std::uint32_t i = 0; i < step.peer_count; ++i) text += fmt::format(" {}", peers[step.peers + i]);
      for (int i = 0; i < step.sources + step.destinations; ++i) {
        const ProgramRange& range = ranges[step.ranges + static_cast<std::uint32_t>(i)];
        text +=
            fmt::format("{} {}@{}:{}", i == step.sources ? " ->" : "", name_of(range.place), range.rank, range.slot);
      }
      text += "\n";
    }
  }
  return text;
}

}  // namespace tutti::executor::cuda
