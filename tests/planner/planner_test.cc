// Which plan serves a call: rules on one host, the cost model across hosts.
#include "collectives/planner/planner.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "collectives/plan/count.h"
#include "collectives/plan/verify.h"
#include "collectives/planner/candidates.h"
#include "collectives/planner/demand.h"
#include "topology/machines.h"

namespace tutti::planner::planner_test {
namespace {

using ::testing::HasSubstr;

/// `hosts` hosts with `ranks` ranks each.
Planner planner_of(int hosts, int ranks, const std::string& rules = "", const CostOptions& cost = {}) {
  const topology::Topology t = topology::machine("ethernet", {.hosts = hosts, .ranks = ranks}).take();
  auto graph = hosts == 1 ? nullptr : std::make_unique<const topology::Graph>(topology::Graph::of(t).take());
  return Planner(Selection::with_rules(rules).take(), topology::host_of_rank(t), std::move(graph), cost);
}

Demand demand_of(Collective collective, int ranks, std::size_t bytes) {
  Demand demand;
  demand.collective = collective;
  demand.ranks = ranks;
  demand.bytes = bytes;
  demand.lanes = 2;
  return demand;
}

TEST(Planner, GoesByTheRulesOnOneHost) {
  Planner planner = planner_of(1, 4);
  const Choice choice = planner.choose(demand_of(Collective::all_reduce, 4, 64), 0).take();
  EXPECT_STREQ(choice.algorithm->name, "one_shot");
  EXPECT_THAT(choice.reason, HasSubstr("built-in rule"));
  ASSERT_NE(choice.plan, nullptr);
  EXPECT_FALSE(planner.spans_hosts());
}

TEST(Planner, GoesByTheCostModelAcrossHosts) {
  Planner planner = planner_of(4, 2);
  for (int c = 0; c < kCollectives; ++c) {
    const auto collective = static_cast<Collective>(c);
    if (collective == Collective::send_recv) continue;
    for (const std::size_t bytes : {std::size_t{8}, std::size_t{64} << 10, std::size_t{16} << 20}) {
      const Choice choice = planner.choose(demand_of(collective, 8, bytes), 0).take();
      ASSERT_NE(choice.plan, nullptr) << name_of(collective);
      EXPECT_FALSE(choice.algorithm->needs_load_store) << choice.algorithm->name;
      EXPECT_LE(choice.plan->of_rank[0].lanes.size(), 2U);
      EXPECT_TRUE(plan::verify(*choice.plan).ok()) << choice.algorithm->name;
      EXPECT_THAT(choice.reason, HasSubstr("predicted"));
    }
  }
  // One exchange for what is small; for what is large, what crosses little and never lets the link rest.
  EXPECT_STREQ(planner.choose(demand_of(Collective::all_reduce, 8, 8), 0).take().algorithm->name, "put_one_shot");
  const Choice large = planner.choose(demand_of(Collective::all_reduce, 8, 16 << 20), 0).take();
  const std::int64_t away = plan::total(plan::count(*large.plan, {0, 0, 1, 1, 2, 2, 3, 3})).pieces_put_away;
  EXPECT_LE(away, 4 * 2 * large.plan->pieces);  // each host sends the vector less than twice
  EXPECT_EQ(large.plan->of_rank[0].lanes.size(), 2U);
}

// While one waits for another host the other works within its own; also where each rank has a block of its own.
TEST(Planner, LargeMessagesTakeTwoLanesAcrossHosts) {
  Planner planner = planner_of(2, 2);
  for (const Collective collective :
       {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather, Collective::all_to_all}) {
    const Choice choice = planner.choose(demand_of(collective, 4, 4 << 20), 0).take();
    EXPECT_EQ(choice.plan->of_rank[0].lanes.size(), 2U) << name_of(collective);
  }
  // Only its owner can cut a block of an all_to_allv.
  EXPECT_EQ(planner.choose(demand_of(Collective::all_to_allv, 4, 4 << 20), 0).take().plan->of_rank[0].lanes.size(), 1U);
}

TEST(Planner, SaysWhatTheMessageIsCutInto) {
  CostOptions cost;
  cost.scratch_half = 4 << 20;
  cost.slice = 512 << 10;
  Planner planner = planner_of(4, 1, "", cost);
  EXPECT_EQ(planner.choose(demand_of(Collective::broadcast, 4, 1 << 20), 0).take().slice, std::size_t{128} << 10);
  EXPECT_EQ(planner.choose(demand_of(Collective::all_reduce, 4, 1 << 20), 0).take().slice, std::size_t{512} << 10);
}

TEST(Planner, MakesOneChoiceForASizeClass) {
  Planner planner = planner_of(2, 1);
  const Choice first = planner.choose(demand_of(Collective::all_reduce, 2, 600 << 10), 0).take();
  const std::size_t memory = planner.memory();
  EXPECT_EQ(planner.choose(demand_of(Collective::all_reduce, 2, 1 << 20), 0).take().plan, first.plan);
  EXPECT_EQ(planner.memory(), memory);
  EXPECT_NE(planner.choose(demand_of(Collective::all_reduce, 2, (1 << 20) + 1), 0).take().plan, first.plan);
  EXPECT_GT(planner.memory(), memory);
}

TEST(Planner, TakesTheUsersWordBeforeTheModels) {
  Planner planner = planner_of(2, 2, "all_reduce * 1M-inf ring");
  const Choice large = planner.choose(demand_of(Collective::all_reduce, 4, 2 << 20), 0).take();
  EXPECT_STREQ(large.algorithm->name, "ring");
  EXPECT_THAT(large.reason, HasSubstr("rule 'all_reduce * 1M-inf ring'"));
  EXPECT_THAT(large.reason, HasSubstr("predicted"));
  Demand named = demand_of(Collective::all_reduce, 4, 2 << 20);
  named.algorithm = "halving_doubling";
  EXPECT_STREQ(planner.choose(named, 0).take().algorithm->name, "halving_doubling");
  // One that needs what links between hosts have not is refused by name, and passed over as a rule.
  named.algorithm = "one_shot";
  const Result<Choice> refused = planner.choose(named, 0);
  EXPECT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("load and store"));
}

TEST(Planner, TakesTheFirstOfSeveralNamesThatCanServe) {
  Planner planner = planner_of(2, 2);
  Demand named = demand_of(Collective::all_reduce, 4, 2 << 20);
  const std::string free = planner.choose(named, 0).take().algorithm->name;
  const auto taken = [&](std::string_view names) -> std::string {
    named.algorithm = names;
    const Result<Choice> choice = planner.choose(named, 0);
    return choice.ok() ? choice.value().algorithm->name : choice.status().message();
  };
  EXPECT_EQ(taken("one_shot,nonsense, halving_doubling,ring"), "halving_doubling");
  EXPECT_EQ(taken("one_shot,auto"), free);
  EXPECT_EQ(taken("ring,auto"), "ring");
  EXPECT_EQ(taken("auto"), free);
  EXPECT_THAT(taken("nonsense,one_shot"), HasSubstr("all_reduce has no algorithm 'nonsense'"));
  EXPECT_THAT(taken("one_shot,nonsense"), HasSubstr("load and store"));
}

TEST(DemandOf, PrefersWhatTheCommunicatorNamesWhereThatServes) {
  Call call;
  call.collective = Collective::all_reduce;
  const auto named = [&](const DemandOptions& options) { return planner::demand_of(call, 4, 64, options).algorithm; };
  EXPECT_EQ(named({.preferred = "one_shot"}), "one_shot");
  EXPECT_EQ(named({.preferred = "one_shot", .load_store = false}), "");
  EXPECT_EQ(named({.deterministic = true, .preferred = "ring"}), "");
  call.algorithm = "two_shot";
  EXPECT_EQ(named({.preferred = "one_shot", .load_store = false}),
            "two_shot");  // a demand: whether it serves is asked later
}

TEST(Planner, AcceptsAnEarlierNameOfAnAlgorithm) {
  Planner planner = planner_of(2, 2, "reduce_scatter * * staged_direct");
  ::testing::internal::CaptureStderr();
  Demand named = demand_of(Collective::all_reduce, 4, 64);
  named.algorithm = "staged_two_shot";
  EXPECT_STREQ(planner.choose(named, 0).take().algorithm->name, "put_two_shot");
  EXPECT_TRUE(is_named("ring,staged_two_shot", "put_two_shot"));
  EXPECT_STREQ(planner.choose(demand_of(Collective::reduce_scatter, 4, 64), 0).take().algorithm->name, "linear");
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_LE(std::count(said.begin(), said.end(), '\n'), 1) << said;  // once in a process
}

TEST(Planner, KeepsToRankOrderInDeterministicMode) {
  Planner planner = planner_of(2, 2);
  for (const Collective collective : {Collective::all_reduce, Collective::reduce_scatter, Collective::reduce}) {
    Demand demand = demand_of(collective, 4, 1 << 20);
    demand.deterministic = true;
    const Result<Choice> choice = planner.choose(demand, 0);
    ASSERT_TRUE(choice.ok()) << choice.status().message();
    EXPECT_TRUE(choice.value().algorithm->rank_order);
    EXPECT_TRUE(choice.value().plan->rank_order);
  }
}

// What turns out to be dearer is not priced to its end; the result is that of pricing all.
TEST(Cheapest, IsTheFirstOfTheCandidates) {
  for (const char* name : {"ethernet", "uneven"}) {
    const topology::Graph graph = topology::Graph::of(topology::machine(name, {.hosts = 4, .ranks = 0}).take()).take();
    for (std::size_t bytes = 8; bytes <= 16 << 20; bytes *= 16) {
      for (const Collective collective : {Collective::all_reduce, Collective::all_gather, Collective::broadcast}) {
        Demand demand = demand_of(collective, graph.ranks(), bytes);
        const Candidate all = candidates(demand, graph).front();
        const Candidate one = cheapest(demand, graph, 0, {});
        EXPECT_EQ(one.algorithm, all.algorithm);
        EXPECT_EQ(one.order, all.order);
        EXPECT_EQ(one.estimate.us, all.estimate.us);
      }
    }
  }
}

// On hundreds of ranks large plans are made only where fewer hosts say that they may be the best.
TEST(Cheapest, OnManyRanksIsAsGoodAsAnyPlanWouldBe) {
  const topology::Graph graph =
      topology::Graph::of(topology::machine("ethernet", {.hosts = 16, .ranks = 8}).take()).take();
  for (const std::size_t bytes : {std::size_t{8}, std::size_t{1} << 20}) {
    const Demand demand = demand_of(Collective::all_reduce, 128, bytes);
    const Candidate best = cheapest(demand, graph, 0, {});
    const std::vector<Candidate> all = candidates(demand, graph);
    EXPECT_EQ(all.front().algorithm, best.algorithm);
    EXPECT_EQ(all.front().estimate.us, best.estimate.us);
    EXPECT_TRUE(plan::verify(*best.plan).ok());
    for (const algorithms::Algorithm& algorithm : algorithms::table()) {
      if (algorithm.collective != demand.collective || algorithm.needs_load_store) continue;
      EXPECT_GE(cheapest(demand, graph, 0, {}, &algorithm).estimate.us, best.estimate.us) << algorithm.name;
    }
  }
}

}  // namespace
}  // namespace tutti::planner::planner_test
