#include "collectives/executor/host/prepared.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <map>

#include "base/check.h"

namespace tutti::executor {

using plan::Placement;
using plan::Plan;
using plan::Range;
using plan::Space;
using plan::Step;
using plan::StepKind;

namespace {

// From here on stores that bypass the caches pay (measured: perf/README.md).
constexpr std::size_t kStreamingBytes = std::size_t{1} << 20;
// A slice that passes through scratch should still be in the second-level cache when the peer takes it.
constexpr std::size_t kSliceBytes = std::size_t{128} << 10;

struct Pieces {
  int first = -1;
  int count = 0;
};

using SlotKey = std::pair<std::pair<int, int>, int>;  // (space, rank), slot

SlotKey key_of(const Range& range, int i) { return {{static_cast<int>(range.space), range.rank}, range.first + i}; }

bool is_user(Space space) { return space == Space::input || space == Space::output; }

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

std::size_t round_down(std::size_t value, std::size_t multiple) { return value / multiple * multiple; }

// Slots of one kind: how large, and how many rounds it takes to push the largest piece through.
struct SlotPlan {
  std::size_t bytes = 0;
  std::size_t rounds = 1;
};

// `many`: other slots need more than one round, so these have two sets too.
Result<SlotPlan> plan_slots(std::size_t half, int slots, std::size_t piece_bytes, std::size_t element, bool many) {
  if (slots == 0 || piece_bytes == 0) return SlotPlan{};
  const std::size_t line = transport::kCacheLine;
  const std::size_t single = round_down(half / static_cast<std::size_t>(slots), line);
  if (!many && piece_bytes <= std::min(single, kSliceBytes)) return SlotPlan{single, 1};
  const std::size_t twice = round_down(half / (2 * static_cast<std::size_t>(slots)), line);
  const std::size_t elements = std::min(twice, kSliceBytes) / element;
  if (elements == 0) {
    return Status(Code::memory_limit,
                  fmt::format("{} bytes of scratch are too few for {} slots of at least one element", half, slots));
  }
  return SlotPlan{twice, largest_share(piece_bytes / element, elements)};
}

// One round, one lane, no slots but at most one published one of a few bytes, filled before the first signal; and each
// peer is signalled and waited for at most once, since a call has one express cell for each direction.
bool fits_express(const Prepared& p, std::size_t piece_bytes) {
  const Plan& plan = *p.plan;
  if (p.rounds != 1 || p.lanes.size() != 1 || p.opens || plan.slots != 0 || plan.published > 1 ||
      piece_bytes > transport::ExpressCell::kBytes || p.shape.op == ReduceOp::premul_sum) {
    return false;
  }
  std::vector<int> signalled(static_cast<std::size_t>(p.ranks));
  std::vector<int> waited(static_cast<std::size_t>(p.ranks));
  bool any_signal = false;
  for (const PreparedStep& s : p.lanes.front()) {
    if (s.guard != plan::Guard::always) continue;  // never carried out in a single round
    const auto peer = static_cast<std::size_t>(s.peer);
    if (s.kind == StepKind::signal) {
      any_signal = true;
      if (++signalled[peer] > 1) return false;
    } else if (s.kind == StepKind::wait) {
      if (++waited[peer] > 1) return false;
    } else {
      for (std::uint32_t i = 0; i < s.destination_count; ++i) {
        if (p.ranges[s.destinations + i].range.space == Space::published && any_signal) return false;
      }
    }
  }
  return true;
}

}  // namespace

std::size_t Prepared::piece_elements(int piece) const {
  if (placement_of(Space::input) == Placement::split) {
    return begins[static_cast<std::size_t>(piece) + 1] - begins[static_cast<std::size_t>(piece)];
  }
  return shape.count;
}

std::size_t Prepared::piece_begin(Placement placement, int piece) const {
  switch (placement) {
    case Placement::split: return begins[static_cast<std::size_t>(piece)];
    case Placement::blocks: return static_cast<std::size_t>(piece) * shape.count;
    case Placement::own: return 0;
  }
  return 0;
}

Placement Prepared::placement_of(Space space) const {
  const plan::Placements placements = plan::placements_of(shape.collective);
  return space == Space::input ? placements.input : placements.output;
}

std::size_t Prepared::memory() const {
  std::size_t bytes =
      sizeof(*this) + ranges.capacity() * sizeof(PreparedRange) + begins.capacity() * sizeof(std::size_t);
  for (const auto& lane : lanes) bytes += lane.capacity() * sizeof(PreparedStep);
  return bytes;
}

Result<std::shared_ptr<const Prepared>> prepare(std::shared_ptr<const Plan> plan, int rank, const Shape& shape,
                                                const transport::WindowSizes& sizes) {
  static std::atomic<std::uint64_t> next_id{1};
  auto prepared = std::make_shared<Prepared>();
  Prepared& p = *prepared;
  p.plan = plan;
  p.shape = shape;
  p.rank = rank;
  p.ranks = plan->ranks;
  p.element = size_of(shape.type);
  p.peers = plan::peers_of(*plan, rank);
  p.opens = plan::opens_peers(*plan);
  p.id = next_id.fetch_add(1, std::memory_order_relaxed);
  for (int piece = 0; piece <= plan->pieces; ++piece) {
    const auto pieces = static_cast<std::size_t>(plan->pieces);
    p.begins.push_back(piece == plan->pieces ? shape.count
                                             : even_share(shape.count, pieces, static_cast<std::size_t>(piece)).offset);
  }

  // The largest piece is the first (even_share), or any block.
  const std::size_t piece_bytes = (shape.count == 0 ? 0 : p.piece_elements(0)) * p.element;
  SlotPlan scratch;
  SlotPlan published;
  for (const bool many : {false, true}) {
    TUTTI_ASSIGN(scratch, plan_slots(sizes.scratch_half, plan->slots, piece_bytes, p.element, many));
    TUTTI_ASSIGN(published, plan_slots(sizes.published_half, plan->published, piece_bytes, p.element, many));
    if (scratch.rounds == 1 && published.rounds == 1) break;
  }
  p.rounds = static_cast<int>(std::max(scratch.rounds, published.rounds));
  p.slot_bytes = scratch.bytes;
  p.published_bytes = published.bytes;

  const std::size_t blocks =
      p.placement_of(Space::output) == Placement::blocks || p.placement_of(Space::input) == Placement::blocks
          ? static_cast<std::size_t>(p.ranks)
          : 1;
  p.streaming = shape.count * p.element * blocks >= kStreamingBytes;

  const PieceFinder pieces(*plan);
  const auto add_ranges = [&](const std::vector<Range>& ranges) {
    const auto first = static_cast<std::uint32_t>(p.ranges.size());
    for (const Range& range : ranges) {
      PreparedRange r;
      r.range = range;
      r.base = static_cast<std::uint32_t>(static_cast<int>(range.space) * p.ranks + range.rank);
      r.remote = range.rank != rank;
      r.raw_input = range.space == Space::input;
      if (is_user(range.space)) {
        r.offset = p.piece_begin(p.placement_of(range.space), range.first) * p.element;
      } else {
        r.offset =
            static_cast<std::size_t>(range.first) * (range.space == Space::scratch ? p.slot_bytes : p.published_bytes);
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
        s.one_pass = s.pieces == 1 || (std::all_of(step.sources.begin(), step.sources.end(), in_user_memory) &&
                                       std::all_of(step.destinations.begin(), step.destinations.end(), in_user_memory));
      }
      s.sources = add_ranges(step.sources);
      s.source_count = static_cast<std::uint32_t>(step.sources.size());
      s.destinations = add_ranges(step.destinations);
      s.destination_count = static_cast<std::uint32_t>(step.destinations.size());
      steps.push_back(s);
    }
  }
  p.express = fits_express(p, plan->published == 0 ? 0 : piece_bytes);
  if (p.express) p.express_bytes = plan->published == 0 ? 0 : piece_bytes;
  return std::shared_ptr<const Prepared>(std::move(prepared));
}

}  // namespace tutti::executor
