// Plans in another order and plans side by side are proven as all plans are.
#include "collectives/plan/rename.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <random>
#include <string>

#include "collectives/algorithms/common/samples.h"
#include "collectives/plan/count.h"
#include "collectives/plan/layout.h"
#include "collectives/plan/verify.h"

namespace tutti::plan::rename_test {
namespace {

std::vector<int> shuffled(int n, std::mt19937& random) {
  std::vector<int> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

TEST(Renamed, EveryAlgorithmIsProvenInAnyOrder) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (const algorithms::Algorithm& algorithm : algorithms::table()) {
    for (const int ranks : {1, 2, 3, 5, 6, 8}) {
      const auto requests = algorithms::sample_requests(algorithm, ranks);
      const Plan before = algorithm.build(requests[random() % requests.size()]);
      const std::vector<int> order = shuffled(ranks, random);
      const Plan after = renamed(before, order);
      for (const bool in_place : {false, true}) {
        if (in_place && !algorithm.in_place) continue;
        const Status status = verify(after, {.in_place = in_place});
        ASSERT_TRUE(status.ok()) << name_of(algorithm.collective) << " " << algorithm.name << " on " << ranks
                                 << " ranks in order " << ::testing::PrintToString(order) << ": " << status.message();
      }
      const Counts was = total(count(before));
      const Counts is = total(count(after));
      EXPECT_EQ(is.pieces_put, was.pieces_put);
      EXPECT_EQ(is.pieces_read, was.pieces_read);
      EXPECT_EQ(is.signals, was.signals);
    }
  }
}

TEST(Renamed, TheOrderOfTheRanksChangesNothing) {
  const Plan plan = algorithms::find(Collective::all_reduce, "ring")->build({Collective::all_reduce, 4, 0, {}});
  EXPECT_EQ(renamed(plan, {0, 1, 2, 3}), plan);
  EXPECT_FALSE(renamed(plan, {1, 0, 2, 3}) == plan);
}

TEST(Renamed, SumsAreNotInRankOrderAnyMore) {
  const Plan plan = algorithms::find(Collective::all_reduce, "put_two_shot")->build({Collective::all_reduce, 3, 0, {}});
  ASSERT_TRUE(plan.rank_order);
  EXPECT_TRUE(renamed(plan, {0, 1, 2}).rank_order);
  EXPECT_FALSE(renamed(plan, {2, 1, 0}).rank_order);
}

TEST(Embedded, OnlyTheMembersDoWhatTheyDid) {
  const std::vector<int> members = {5, 1, 4};
  for (const algorithms::Algorithm& algorithm : algorithms::table()) {
    Plan before = algorithm.build(algorithms::sample_requests(algorithm, 3).front());
    const bool of_blocks = placements_of(algorithm.collective).input != Placement::split;
    if (algorithm.collective != Collective::all_to_allv) before = side_by_side({before, before});
    EXPECT_TRUE(embedded(before, {0, 1, 2}, 3).of_rank == before.of_rank);
    const Plan after = embedded(before, members, 7);
    EXPECT_EQ(after.ranks, 7);
    EXPECT_EQ(after.pieces, of_blocks ? (before.pieces + 2) / 3 * 7 : before.pieces);
    for (const int other : {0, 2, 3, 6}) {
      const RankPlan& idle = after.of_rank[static_cast<std::size_t>(other)];
      EXPECT_EQ(idle.lanes.size(), before.of_rank[0].lanes.size());
      for (const Lane& lane : idle.lanes) EXPECT_TRUE(lane.steps.empty());
      EXPECT_TRUE(peers_of(after, other).empty());
    }
    for (int p = 0; p < 3; ++p) {
      const int member = members[static_cast<std::size_t>(p)];
      std::vector<int> peers;
      for (const int peer : peers_of(before, p)) peers.push_back(members[static_cast<std::size_t>(peer)]);
      EXPECT_THAT(peers_of(after, member), ::testing::UnorderedElementsAreArray(peers));
      const auto steps = [](const Plan& plan, int rank) -> const std::vector<Step>& {
        return plan.of_rank[static_cast<std::size_t>(rank)].lanes.back().steps;
      };
      ASSERT_EQ(steps(after, member).size(), steps(before, p).size());
      for (std::size_t i = 0; i < steps(before, p).size(); ++i) {
        const Step& was = steps(before, p)[i];
        const Step& now = steps(after, member)[i];
        EXPECT_EQ(now.kind, was.kind);
        EXPECT_EQ(now.peer, was.peer < 0 ? was.peer : members[static_cast<std::size_t>(was.peer)]);
        for (std::size_t k = 0; k < was.sources.size(); ++k) {
          EXPECT_EQ(now.sources[k].rank, members[static_cast<std::size_t>(was.sources[k].rank)]);
          if (!of_blocks || !is_user(was.sources[k].space)) {
            EXPECT_EQ(now.sources[k].first, was.sources[k].first);
            continue;
          }
          EXPECT_EQ(block_of(after, now.sources[k].first), block_of(before, was.sources[k].first));
          EXPECT_EQ(now.sources[k].first / after.ranks, was.sources[k].first / before.ranks);
        }
      }
    }
  }
}

TEST(SideBySide, IsProvenForAllThatCanBeCut) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (const algorithms::Algorithm& algorithm : algorithms::table()) {
    if (algorithm.collective == Collective::all_to_allv || algorithm.collective == Collective::barrier) continue;
    for (const int ranks : {1, 2, 3, 6}) {
      std::vector<Plan> plans;
      for (int lanes = 2 + static_cast<int>(random() % 3); lanes > 0; --lanes) {
        std::vector<int> order = shuffled(ranks, random);
        algorithms::PlanRequest request{algorithm.collective, ranks, 0, {}};
        if (has_root(algorithm.collective)) {
          request.root = static_cast<int>(std::find(order.begin(), order.end(), ranks / 2) - order.begin());
        }
        plans.push_back(renamed(algorithm.build(request), order));
      }
      const Plan all = side_by_side(plans);
      EXPECT_EQ(all.of_rank[0].lanes.size(), plans.size());
      for (const Plan& plan : {all, renamed(all, shuffled(ranks, random))}) {
        const Status status = verify(plan);
        ASSERT_TRUE(status.ok()) << name_of(algorithm.collective) << " " << algorithm.name << " on " << ranks
                                 << " ranks, " << plans.size() << " lanes: " << status.message();
      }
    }
  }
}

}  // namespace
}  // namespace tutti::plan::rename_test
