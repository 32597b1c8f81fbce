#include "collectives/executor/prepared.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <utility>

#include "base/check.h"
#include "collectives/plan/express.h"
#include "collectives/reduce/reduce.h"

namespace tutti::executor {

using plan::is_user;
using plan::Placement;
using plan::Plan;
using plan::Range;
using plan::Space;
using plan::Step;
using plan::StepKind;

namespace {

struct Pieces {
  int first = -1;
  int count = 0;
};

using SlotKey = std::pair<std::pair<int, int>, int>;  // (space, rank), slot

SlotKey key_of(const Range& range, int i) { return {{static_cast<int>(range.space), range.rank}, range.first + i}; }

// Which pieces each step moves. A step that touches the caller's buffers says so itself; one that moves a slot to a
// slot moves what the slot was filled with, perhaps by another rank: so look until nothing new is learnt.
class PieceFinder {
 public:
  explicit PieceFinder(const Plan& plan) {
    for (bool learnt = true; learnt;) {
      learnt = false;
      for (const plan::RankPlan& rank : plan.of_rank) {
        for (const plan::Lane& lane : rank.lanes) {
          for (const Step& step : lane.steps) learnt |= learn(step);
        }
      }
    }
  }

  Pieces of(const Step& step) const {
    for (const auto* ranges : {&step.sources, &step.destinations}) {
      for (const Range& range : *ranges) {
        if (is_user(range.space)) return {range.first, range.count};
      }
    }
    for (const auto* ranges : {&step.sources, &step.destinations}) {
      for (const Range& range : *ranges) {
        const auto found = slots_.find(key_of(range, 0));
        if (found != slots_.end()) return {found->second, range.count};
      }
    }
    return {};
  }

 private:
  bool learn(const Step& step) {
    bool learnt = false;
    if (step.destinations.empty()) return false;
    const Pieces pieces = of(step);
    if (pieces.first < 0) return false;
    for (const Range& range : step.destinations) {
      if (is_user(range.space)) continue;
      for (int i = 0; i < range.count; ++i) learnt |= slots_.emplace(key_of(range, i), pieces.first + i).second;
    }
    return learnt;
  }

  std::map<SlotKey, int> slots_;  // the piece that a slot holds
};

// `many`: other slots need more than one round, so these have several sets too. Sets `rounds` to what the largest piece
// takes to be pushed through.
Result<Slots> plan_slots(std::size_t half, const PlanLimits& limits, int count, std::size_t piece_bytes,
                         std::size_t element, bool many, std::size_t& rounds) {
  rounds = 1;
  if (count == 0 || piece_bytes == 0) return Slots{};
  const auto slots = static_cast<std::size_t>(count);
  const auto strips = static_cast<std::size_t>(limits.strips);
  const auto slot_bytes = [&](std::size_t bytes) { return strips * strip_bytes(bytes, limits.strips); };
  if (!many && piece_bytes <= limits.slice_bytes && slot_bytes(piece_bytes) <= half / slots) {
    return Slots{count, slot_bytes(piece_bytes), 1};
  }
  const std::size_t line = transport::kCacheLine;
  const std::size_t most = half / (2 * slots) / strips / line * line * strips;
  const std::size_t elements = std::min(most, limits.slice_bytes) / element;
  if (elements == 0) {
    return Status(Code::memory_limit,
                  fmt::format("{} bytes of scratch are too few for {} slots of at least one element", half, slots));
  }
  rounds = largest_share(piece_bytes / element, elements);
  const std::size_t bytes = slot_bytes(std::min(piece_bytes, elements * element));
  return Slots{count, bytes, static_cast<int>(half / (slots * bytes))};
}

/// Returns the ranks that fill each rank's scratch slots, if the call's data goes in its signals; else nothing.
std::optional<plan::SlotSenders> express_senders(const Prepared& p, std::size_t piece_bytes,
                                                 std::size_t express_bytes) {
  const bool has_slots = p.plan->slots + p.plan->published != 0;
  if (express_bytes == 0 || p.rounds != 1 || (has_slots && piece_bytes > express_bytes) ||
      p.shape.op == ReduceOp::premul_sum) {
    return std::nullopt;
  }
  return plan::express_senders(*p.plan);
}

/// Whether the step touches `range`, of this rank's output or scratch; `in_place`: the input may be that.
bool touches(const Prepared& p, const PreparedStep& s, const Range& range, bool in_place) {
  for (std::uint32_t i = s.sources; i < s.destinations + s.destination_count; ++i) {
    const Range& other = p.ranges[i].range;
    if (other.rank != p.rank) continue;
    if (in_place && other.space == Space::input) return true;
    if (other.space != range.space) continue;
    if (other.first < range.first + range.count && range.first < other.first + other.count) return true;
  }
  return false;
}

/// The first step from which on none touches the destination of step `at`, until it does so itself.
std::uint32_t untouched_from(const Prepared& p, std::size_t lane, std::size_t at, bool in_place) {
  const Range& to = p.ranges[p.lanes[lane][at].destinations].range;
  // A step of another lane may be ordered by messages that this lane waits for.
  for (std::size_t other = 0; other < p.lanes.size(); ++other) {
    const auto& steps = p.lanes[other];
    const auto touch = [&](const PreparedStep& s) { return touches(p, s, to, in_place); };
    if (other != lane && std::any_of(steps.begin(), steps.end(), touch)) return PreparedStep::kNever;
  }
  auto from = static_cast<std::uint32_t>(at);
  while (from > 0 && !touches(p, p.lanes[lane][from - 1], to, in_place)) --from;
  return from;
}

/// Whether no other step uses the slot that this one copies, and so misses what has not come there.
bool is_only_use(const Prepared& p, const PreparedStep& copy) {
  const Range& slot = p.ranges[copy.sources].range;
  return std::all_of(p.lanes.begin(), p.lanes.end(), [&](const auto& steps) {
    return std::all_of(steps.begin(), steps.end(),
                       [&](const PreparedStep& s) { return &s == &copy || !touches(p, s, slot, false); });
  });
}

void mark_redirects(Prepared& p) {
  if (p.express || p.opens || p.shape.op == ReduceOp::premul_sum) return;
  for (std::size_t lane = 0; lane < p.lanes.size(); ++lane) {
    int sender = -1;
    for (std::size_t i = 0; i < p.lanes[lane].size(); ++i) {
      PreparedStep& s = p.lanes[lane][i];
      if (s.kind == StepKind::wait && s.channel == static_cast<std::uint8_t>(plan::Channel::data)) sender = s.peer;
      if (s.kind != StepKind::copy || s.source_count != 1 || s.destination_count != 1) continue;
      const Range& from = p.ranges[s.sources].range;
      const Range& to = p.ranges[s.destinations].range;
      if (from.space != Space::scratch || from.rank != p.rank || to.space != Space::output || to.rank != p.rank)
        continue;
      if (sender < 0 || !is_only_use(p, s)) continue;
      s.sender = sender;
      s.redirects_from = untouched_from(p, lane, i, false);
      s.redirects_from_in_place = untouched_from(p, lane, i, true);
    }
  }
}

}  // namespace

std::size_t Prepared::piece_elements(int piece) const {
  const std::size_t part = part_of(piece);
  return begins[part + 1] - begins[part];
}

std::size_t Prepared::piece_begin(Placement placement, int piece) const {
  const std::size_t from_block_to_block = shape.stride != 0 ? shape.stride : shape.count;
  const bool behind_others = placement == Placement::blocks;
  return begins[part_of(piece)] +
         (behind_others ? static_cast<std::size_t>(plan::block_of(*plan, piece)) * from_block_to_block : 0);
}

std::size_t Prepared::part_of(int piece) const {
  return static_cast<std::size_t>(placement_of(Space::input) == Placement::split ? piece : piece / ranks);
}

Placement Prepared::placement_of(Space space) const {
  const plan::Placements placements = plan::placements_of(shape.collective);
  return space == Space::input ? placements.input : placements.output;
}

PlanLimits limits_of(const transport::WindowSizes& sizes) {
  return {.scratch_half = sizes.scratch_half,
          .published_half = sizes.published_half,
          .express_bytes = sizes.express_bytes()};
}

std::size_t Prepared::memory() const {
  std::size_t bytes =
      sizeof(*this) + ranges.capacity() * sizeof(PreparedRange) + begins.capacity() * sizeof(std::size_t);
  for (const auto& lane : lanes) bytes += lane.capacity() * sizeof(PreparedStep);
  return bytes;
}

Result<std::shared_ptr<Prepared>> prepare(const std::shared_ptr<const Plan>& plan, int rank, const Shape& shape,
                                          const PlanLimits& limits, std::size_t streaming_above) {
  static std::atomic<std::uint64_t> next_id{1};
  auto prepared = std::make_shared<Prepared>();
  Prepared& p = *prepared;
  p.plan = plan;
  p.shape = shape;
  p.rank = rank;
  p.ranks = plan->ranks;
  p.strips = limits.strips;
  p.element = size_of(shape.type);
  p.peers = plan::peers_of(*plan, rank);
  p.opens = plan::opens_peers(*plan);
  p.id = next_id.fetch_add(1, std::memory_order_relaxed);
  const std::size_t parts = p.part_of(plan->pieces - 1) + 1;
  for (std::size_t part = 0; part < parts; ++part) p.begins.push_back(even_share(shape.count, parts, part).offset);
  p.begins.push_back(shape.count);

  // The largest piece is the first (even_share), or any block.
  const std::size_t piece_bytes = (shape.count == 0 ? 0 : p.piece_elements(0)) * p.element;
  std::size_t scratch_rounds = 1;
  std::size_t published_rounds = 1;
  for (const bool many : {false, true}) {
    TUTTI_ASSIGN(p.scratch,
                 plan_slots(limits.scratch_half, limits, plan->slots, piece_bytes, p.element, many, scratch_rounds));
    TUTTI_ASSIGN(p.published, plan_slots(limits.published_half, limits, plan->published, piece_bytes, p.element, many,
                                         published_rounds));
    if (scratch_rounds == 1 && published_rounds == 1) break;
  }
  p.rounds = static_cast<int>(std::max(scratch_rounds, published_rounds));
  for (Slots* slots : {&p.scratch, &p.published}) slots->sets = std::min(slots->sets, p.rounds);

  const std::size_t blocks =
      p.placement_of(Space::output) == Placement::blocks || p.placement_of(Space::input) == Placement::blocks
          ? static_cast<std::size_t>(p.ranks)
          : 1;
  p.streaming = shape.count * p.element * blocks > streaming_above;

  const std::optional<plan::SlotSenders> senders = express_senders(p, piece_bytes, limits.express_bytes);
  p.express = senders.has_value();
  if (p.express) {
    p.express_data.published = plan->published != 0 ? piece_bytes : 0;
    p.express_data.put = plan->slots != 0 ? piece_bytes : 0;
    p.scratch = p.published = {};  // not used
    p.express_data.signalled.resize(static_cast<std::size_t>(p.ranks));
    for (const Step& s : plan->of_rank[static_cast<std::size_t>(rank)].lanes.front().steps) {
      if (s.kind != StepKind::signal || s.guard != plan::Guard::always) continue;  // no other in a single round
      p.express_data.signalled[static_cast<std::size_t>(s.peer)] = true;
    }
  }

  const bool one_behind_the_other = p.placement_of(Space::input) == Placement::split || parts == 1;
  const PieceFinder pieces(*plan);
  const auto add_ranges = [&](const std::vector<Range>& ranges) {
    const auto first = static_cast<std::uint32_t>(p.ranges.size());
    for (const Range& range : ranges) {
      PreparedRange r;
      r.range = range;
      r.base = static_cast<std::uint32_t>(base_index(range.space, p.ranks, range.rank));
      r.in_peer_memory = range.rank != rank;
      r.raw_input = range.space == Space::input;
      if (is_user(range.space)) {
        r.offset = p.piece_begin(p.placement_of(range.space), range.first) * p.element;
      } else if (p.express && range.space == Space::scratch && !r.in_peer_memory) {
        const int sender = (*senders)[static_cast<std::size_t>(rank)][static_cast<std::size_t>(range.first)];
        r.base =
            static_cast<std::uint32_t>(base_index(kInbox, p.ranks, sender));  // offset 0, as all are in express cells
      } else if (!p.express) {
        r.offset = p.slots_of(range.space).offset(range.first, 0);
      }
      p.ranges.push_back(r);
    }
    return first;
  };
  for (const plan::Lane& lane : plan->of_rank[static_cast<std::size_t>(rank)].lanes) {
    auto& steps = p.lanes.emplace_back();
    for (const Step& step : lane.steps) {
      PreparedStep s;
      s.kind = step.kind;
      s.guard = step.guard;
      s.channel = static_cast<std::uint8_t>(step.channel);
      s.last = step.last;
      s.peer = step.peer;
      if (!step.destinations.empty()) {
        const Pieces moved = pieces.of(step);
        TUTTI_CHECK_LE(0, moved.first);
        s.piece = moved.first;
        s.pieces = moved.count;
        for (int i = 0; i < s.pieces; ++i) s.elements += p.piece_elements(s.piece + i);
        const auto in_user_memory = [](const Range& range) { return is_user(range.space); };
        s.one_pass = shape.collective != Collective::all_to_allv &&
                     (s.pieces == 1 ||
                      (one_behind_the_other && std::all_of(step.sources.begin(), step.sources.end(), in_user_memory) &&
                       std::all_of(step.destinations.begin(), step.destinations.end(), in_user_memory)));
      }
      s.sources = add_ranges(step.sources);
      s.source_count = static_cast<std::uint32_t>(step.sources.size());
      s.destinations = add_ranges(step.destinations);
      s.destination_count = static_cast<std::uint32_t>(step.destinations.size());
      steps.push_back(s);
    }
  }
  mark_redirects(p);
  return prepared;
}

}  // namespace tutti::executor
