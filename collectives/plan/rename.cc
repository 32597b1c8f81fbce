#include "collectives/plan/rename.h"

#include <algorithm>
#include <cstddef>

#include "base/check.h"
#include "collectives/plan/layout.h"

namespace tutti::plan {

namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

template <class Each>
void for_ranges(Step& step, const Each& each) {
  for (auto* ranges : {&step.sources, &step.destinations}) {
    for (Range& range : *ranges) each(range);
  }
}

/// The i-th piece of a step that moves several.
Step one_piece(const Step& step, int i) {
  Step one = step;
  for_ranges(one, [&](Range& range) {
    range.first += i;
    range.count = 1;
  });
  return one;
}

int pieces_of(const Step& step) { return step.sources.empty() ? 1 : step.sources.front().count; }

}  // namespace

Plan renamed(const Plan& plan, const std::vector<int>& order) {
  TUTTI_CHECK_EQ(order.size(), at(plan.ranks));
  const bool own_pieces = placements_of(plan.collective).input != Placement::split;
  Plan result = plan;
  result.root = has_root(plan.collective) ? order[at(plan.root)] : plan.root;
  result.rank_order = plan.rank_order && std::is_sorted(order.begin(), order.end());
  for (int p = 0; p < plan.ranks; ++p) {
    RankPlan& rank = result.of_rank[at(order[at(p)])];
    rank.lanes.clear();
    for (const Lane& lane : plan.of_rank[at(p)].lanes) {
      std::vector<Step>& steps = rank.lanes.emplace_back().steps;
      for (const Step& step : lane.steps) {
        // Pieces that stood side by side may no longer do so: one step for each.
        const int parts = own_pieces ? pieces_of(step) : 1;
        for (int i = 0; i < parts; ++i) {
          Step& now = steps.emplace_back(parts == 1 ? step : one_piece(step, i));
          if (now.peer >= 0) now.peer = order[at(now.peer)];
          for_ranges(now, [&](Range& range) {
            range.rank = order[at(range.rank)];
            if (!own_pieces || !is_user(range.space)) return;
            const int block = block_of(plan, range.first);
            range.first += order[at(block)] - block;
          });
        }
      }
    }
  }
  return result;
}

Plan embedded(const Plan& plan, const std::vector<int>& members, int ranks) {
  TUTTI_CHECK_EQ(members.size(), at(plan.ranks));
  const bool of_blocks = placements_of(plan.collective).input != Placement::split;
  Plan result = plan;
  result.ranks = ranks;
  if (of_blocks) result.pieces = (plan.pieces + plan.ranks - 1) / plan.ranks * ranks;
  result.rank_order = false;
  result.of_rank.assign(at(ranks), RankPlan{std::vector<Lane>(plan.of_rank.front().lanes.size())});
  for (int p = 0; p < plan.ranks; ++p) {
    RankPlan& rank = result.of_rank[at(members[at(p)])];
    rank = plan.of_rank[at(p)];
    for (Lane& lane : rank.lanes) {
      for (Step& step : lane.steps) {
        if (step.peer >= 0) step.peer = members[at(step.peer)];
        for_ranges(step, [&](Range& range) {
          range.rank = members[at(range.rank)];
          if (of_blocks && is_user(range.space)) range.first += range.first / plan.ranks * (ranks - plan.ranks);
        });
      }
    }
  }
  return result;
}

Plan side_by_side(const std::vector<Plan>& plans) {
  TUTTI_CHECK(!plans.empty());
  const Plan& first = plans.front();
  TUTTI_CHECK(first.collective != Collective::all_to_allv);
  Plan result = first;
  result.pieces = result.slots = result.published = 0;
  for (RankPlan& rank : result.of_rank) rank.lanes.clear();
  for (const Plan& plan : plans) {
    TUTTI_CHECK(plan.collective == first.collective && plan.ranks == first.ranks && plan.root == first.root);
    TUTTI_CHECK_EQ(plan.pieces, first.pieces);
    for (int rank = 0; rank < plan.ranks; ++rank) {
      for (const Lane& lane : plan.of_rank[at(rank)].lanes) {
        result.of_rank[at(rank)].lanes.push_back(lane);
        for (Step& step : result.of_rank[at(rank)].lanes.back().steps) {
          for_ranges(step, [&](Range& range) {
            range.first += is_user(range.space)            ? result.pieces
                           : range.space == Space::scratch ? result.slots
                                                           : result.published;
          });
        }
      }
    }
    result.pieces += plan.pieces;
    result.slots += plan.slots;
    result.published += plan.published;
    result.rank_order = result.rank_order && plan.rank_order;
  }
  return result;
}

}  // namespace tutti::plan
