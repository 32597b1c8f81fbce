// The part of the proof that needs no walk: shapes, bounds, balanced signals.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "collectives/plan/layout.h"
#include "collectives/plan/verify.h"

namespace tutti::plan {
namespace {

constexpr std::int64_t kMostPlaces = std::int64_t{1} << 28;  // more would not fit into memory

class ShapeCheck {
 public:
  ShapeCheck(const Plan& plan, const VerifyOptions& options) : plan_(plan), options_(options) {}

  Status run() {
    TUTTI_TRY(check_header());
    for (rank_ = 0; rank_ < plan_.ranks; ++rank_) {
      for (lane_ = 0; lane_ < static_cast<int>(plan_.of_rank[rank_].lanes.size()); ++lane_) {
        const std::vector<Step>& steps = plan_.of_rank[rank_].lanes[lane_].steps;
        for (step_ = 0; step_ < static_cast<int>(steps.size()); ++step_) TUTTI_TRY(check_step(steps[step_]));
      }
    }
    return check_balance();
  }

 private:
  Status bad(const std::string& what) const {
    return invalid_argument(fmt::format("rank {}, lane {}, step {}: {}", rank_, lane_, step_, what));
  }

  Status check_header() const {
    const bool sane = plan_.ranks >= 1 && plan_.pieces >= 1 && plan_.slots >= 0 && plan_.published >= 0 &&
                      plan_.root >= 0 && plan_.root < plan_.ranks && options_.rounds >= 1;
    if (!sane) return invalid_argument("the plan's numbers of ranks, pieces, slots or its root are out of bounds");
    const bool is_split = placements_of(plan_.collective).input == Placement::split;
    if (!is_split && plan_.pieces % plan_.ranks != 0) {
      return invalid_argument(
          fmt::format("the plan has {} pieces; expected as many for each of its {} ranks", plan_.pieces, plan_.ranks));
    }
    const std::int64_t places =
        (std::int64_t{plan_.pieces} + plan_.slots + plan_.published) * 2 * plan_.ranks * options_.rounds;
    if (places > kMostPlaces)
      return invalid_argument(fmt::format("the plan is too large to verify: {} places", places));
    if (plan_.of_rank.size() != static_cast<std::size_t>(plan_.ranks)) {
      return invalid_argument(
          fmt::format("the plan is for {} ranks and has steps for {}", plan_.ranks, plan_.of_rank.size()));
    }
    for (const RankPlan& rank : plan_.of_rank) {
      if (rank.lanes.empty() || rank.lanes.size() != plan_.of_rank[0].lanes.size()) {
        return invalid_argument("ranks have different numbers of lanes, or none");
      }
    }
    return {};
  }

  Status check_step(const Step& step) const {
    const bool has_ranges = !step.sources.empty() || !step.destinations.empty();
    switch (step.kind) {
      case StepKind::open:
      case StepKind::signal:
      case StepKind::wait:
        if (has_ranges) return bad("open, signal and wait have no ranges");
        return check_peer(step);
      case StepKind::put:
        TUTTI_TRY(check_peer(step));
        if (step.sources.size() != 1 || step.destinations.size() != 1)
          return bad("a put has one source and one destination");
        if (step.sources[0].rank != rank_) return bad("a put reads own memory");
        if (step.destinations[0].rank != step.peer) return bad("a put writes to its peer's memory");
        break;
      case StepKind::copy:
        if (step.sources.size() != 1 || step.destinations.empty())
          return bad("a copy has one source and a destination");
        break;
      case StepKind::reduce:
        if (step.sources.empty() || step.destinations.empty()) return bad("a reduce has a source and a destination");
        break;
    }
    if (step.last && step.kind != StepKind::reduce) return bad("only a reduce can be the last one of its elements");
    if (step.guard != Guard::always) return bad("only signals and waits have guards");
    const int count = step.sources[0].count;
    for (const Range& range : step.sources) TUTTI_TRY(check_range(range, count, /*written=*/false));
    for (const Range& range : step.destinations) TUTTI_TRY(check_range(range, count, /*written=*/true));
    if (step.kind == StepKind::put) return {};
    for (const Range& range : step.destinations) {
      if (range.space == Space::scratch && range.rank != rank_) return bad("slots of a peer are written by put only");
    }
    return {};
  }

  Status check_peer(const Step& step) const {
    if (step.peer >= 0 && step.peer < plan_.ranks && step.peer != rank_) return {};
    return bad(fmt::format("peer {} is not another rank of {}", step.peer, plan_.ranks));
  }

  Status check_range(const Range& range, int count, bool written) const {
    if (range.rank < 0 || range.rank >= plan_.ranks)
      return bad(fmt::format("rank {} of {} does not exist", range.rank, plan_.ranks));
    if (range.count != count || count < 1)
      return bad("all ranges of a step have the same number of pieces, at least 1");
    const int end = is_user(range.space) ? plan_.pieces : range.space == Space::scratch ? plan_.slots : plan_.published;
    if (range.first < 0 || range.first > end - count) {
      return bad(
          fmt::format("range {}..{} is not within 0..{}", range.first, std::int64_t{range.first} + count - 1, end - 1));
    }
    if (written && range.space == Space::input) return bad("the input belongs to the caller and is not written");
    if (written && range.space == Space::published && range.rank != rank_)
      return bad("published slots are written by their owner");
    if (!written && range.space == Space::scratch && range.rank != rank_)
      return bad("inbound slots are read by their owner");
    if (!is_user(range.space)) return {};
    for (int piece = range.first; piece < range.first + count; ++piece) {
      if (!holds(plan_, range.space, range.rank, piece)) {
        return bad(fmt::format("rank {} has no piece {} in its {}", range.rank, piece,
                               range.space == Space::input ? "input" : "output"));
      }
    }
    return {};
  }

  /// Counters go on from call to call, so a call must leave none over.
  Status check_balance() const {
    std::unordered_map<std::uint64_t, std::int64_t> open_signals;
    const auto key = [&](int from, int to, int lane, Channel channel) {
      return ((static_cast<std::uint64_t>(from) * plan_.ranks + to) * plan_.of_rank[0].lanes.size() + lane) *
                 kChannels +
             static_cast<std::uint64_t>(channel);
    };
    for (int rank = 0; rank < plan_.ranks; ++rank) {
      for (std::size_t lane = 0; lane < plan_.of_rank[rank].lanes.size(); ++lane) {
        for (const Step& step : plan_.of_rank[rank].lanes[lane].steps) {
          const int times = step.guard == Guard::always ? options_.rounds : std::max(0, options_.rounds - 2);
          if (step.kind == StepKind::signal) open_signals[key(rank, step.peer, lane, step.channel)] += times;
          if (step.kind == StepKind::wait) open_signals[key(step.peer, rank, lane, step.channel)] -= times;
        }
      }
    }
    for (const auto& [at, count] : open_signals) {
      if (count == 0) continue;
      const std::uint64_t pair = at / kChannels / plan_.of_rank[0].lanes.size();
      return invalid_argument(fmt::format("rank {} gives rank {} {} {} {} signals than are waited for",
                                          pair / plan_.ranks, pair % plan_.ranks, std::abs(count),
                                          count > 0 ? "more" : "fewer", at % kChannels == 0 ? "data" : "credit"));
    }
    return {};
  }

  const Plan& plan_;
  const VerifyOptions& options_;
  int rank_ = 0;
  int lane_ = 0;
  int step_ = 0;
};

}  // namespace

Status check_shape(const Plan& plan, const VerifyOptions& options) { return ShapeCheck(plan, options).run(); }

}  // namespace tutti::plan
