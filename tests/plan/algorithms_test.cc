// Every row of the table is proven for small numbers of ranks here; `tutti verify` goes to 64 and beyond.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "collectives/algorithms/common/samples.h"
#include "collectives/algorithms/table.h"
#include "collectives/plan/verify.h"

namespace tutti::algorithms::algorithms_test {
namespace {

std::string describe(const Algorithm& algorithm, const PlanRequest& request) {
  std::string text = std::string(name_of(algorithm.collective)) + " " + algorithm.name + " on " +
                     std::to_string(request.ranks) + " ranks, root " + std::to_string(request.root) + ", hosts";
  for (const int host : request.host_of_rank) text += " " + std::to_string(host);
  return text;
}

class EveryAlgorithm : public ::testing::TestWithParam<const Algorithm*> {};

std::vector<const Algorithm*> rows() {
  std::vector<const Algorithm*> rows;
  for (const Algorithm& algorithm : table()) rows.push_back(&algorithm);
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Table, EveryAlgorithm, ::testing::ValuesIn(rows()), [](const auto& info) {
  return std::string(name_of(info.param->collective)) + "_" + info.param->name;
});

TEST_P(EveryAlgorithm, IsProvenForUpTo24Ranks) {
  const Algorithm& algorithm = *GetParam();
  for (int ranks = 1; ranks <= 24; ++ranks) {
    for (const PlanRequest& request : sample_requests(algorithm, ranks)) {
      ASSERT_TRUE(serves(algorithm, request)) << describe(algorithm, request);
      const plan::Plan plan = algorithm.build(request);
      for (const int rounds : {1, 2, 3, 4}) {
        for (const bool in_place : {false, true}) {
          if (in_place && !algorithm.in_place) continue;
          const Status status = plan::verify(plan, {.in_place = in_place, .rounds = rounds});
          ASSERT_TRUE(status.ok()) << describe(algorithm, request) << ", " << rounds << " rounds, in place " << in_place
                                   << ": " << status.message();
        }
      }
    }
  }
}

TEST_P(EveryAlgorithm, HasThePropertiesOfItsRow) {
  const Algorithm& algorithm = *GetParam();
  bool needs_load_store = false;
  bool opens_peers = false;
  bool rank_order = true;
  for (int ranks = 1; ranks <= 9; ++ranks) {
    for (const PlanRequest& request : sample_requests(algorithm, ranks)) {
      const plan::Plan plan = algorithm.build(request);
      EXPECT_EQ(plan.collective, algorithm.collective);
      EXPECT_EQ(plan.algorithm, algorithm.name);
      EXPECT_EQ(plan.ranks, ranks);
      EXPECT_EQ(plan.root, ranks == 1 ? 0 : request.root);
      needs_load_store = needs_load_store || plan::needs_load_store(plan);
      opens_peers = opens_peers || plan::opens_peers(plan);
      rank_order = rank_order && plan.rank_order;
    }
  }
  EXPECT_EQ(needs_load_store, algorithm.needs_load_store);
  EXPECT_EQ(opens_peers, algorithm.opens_peers);
  EXPECT_EQ(rank_order, algorithm.rank_order);
}

TEST_P(EveryAlgorithm, IsFoundByItsName) {
  const Algorithm& algorithm = *GetParam();
  EXPECT_EQ(find(algorithm.collective, algorithm.name), &algorithm);
  EXPECT_EQ(find(algorithm.collective, "no such"), nullptr);
}

TEST_P(EveryAlgorithm, InPlaceIsRefusedByTheProofWhereTheRowSaysSo) {
  const Algorithm& algorithm = *GetParam();
  if (algorithm.in_place) return;
  EXPECT_FALSE(plan::verify(algorithm.build({algorithm.collective, 3}), {.in_place = true}).ok());
}

// Scratch is used by alternate calls with no barrier between; all triples: sequences_slow_test.cc.
TEST(CallsInARow, RandomSequencesOfManyRanks) {
  const unsigned seed = std::random_device{}();
  std::mt19937 random(seed);
  for (int trial = 0; trial < 400; ++trial) {
    const int ranks = 2 + static_cast<int>(random() % 15);
    const int calls = 2 + static_cast<int>(random() % 6);
    std::vector<plan::Plan> plans;
    std::string text;
    for (int call = 0; call < calls; ++call) {
      const Algorithm& algorithm = table()[random() % table().size()];
      const std::vector<PlanRequest> requests = sample_requests(algorithm, ranks);
      plans.push_back(algorithm.build(requests[random() % requests.size()]));
      text += std::string(name_of(algorithm.collective)) + " " + algorithm.name + ", ";
    }
    std::vector<const plan::Plan*> pointers;
    for (const plan::Plan& plan : plans) pointers.push_back(&plan);
    const Status status = plan::verify_sequence(pointers, {.rounds = 1 + static_cast<int>(random() % 4)});
    ASSERT_TRUE(status.ok()) << "seed " << seed << ", trial " << trial << ", " << ranks << " ranks: " << text
                             << status.message();
  }
}

TEST(Serves, RefusesWhatTheTableCannotBuild) {
  const Algorithm& ring = *find(Collective::all_reduce, "ring");
  EXPECT_TRUE(serves(ring, {Collective::all_reduce, 4}));
  EXPECT_FALSE(serves(ring, {Collective::broadcast, 4}));
  EXPECT_FALSE(serves(ring, {Collective::all_reduce, 0}));
  EXPECT_FALSE(serves(ring, {Collective::all_reduce, 4, 1}));
  EXPECT_FALSE(serves(ring, {Collective::all_reduce, 4, 0, {0, 0, 1}}));
  const Algorithm& chain = *find(Collective::broadcast, "chain");
  EXPECT_TRUE(serves(chain, {Collective::broadcast, 4, 3}));
  EXPECT_FALSE(serves(chain, {Collective::broadcast, 4, 4}));
  EXPECT_FALSE(serves(chain, {Collective::broadcast, 4, -1}));
}

}  // namespace
}  // namespace tutti::algorithms::algorithms_test
