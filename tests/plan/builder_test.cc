#include "collectives/plan/builder.h"

#include <gtest/gtest.h>

#include "collectives/plan/layout.h"

namespace tutti::plan::builder_test {
namespace {

TEST(Builder, ASendIsCreditPutSignalAndARecvWaitCopyCredit) {
  Builder b(Collective::broadcast, "x", 2, 1);
  b.rank(0).send(1, b.rank(0).input(0));
  b.rank(1).recv(0, b.rank(1).output(0));
  const Plan plan = b.finish();
  EXPECT_EQ(print(plan),
            "broadcast x ranks 2 pieces 1 root 0 slots 1 published 0 rank_order yes\n"
            "rank 0 lane 0\n"
            "  wait 1 credit from_third_round\n"
            "  put 1 input@0:0 -> scratch@1:0\n"
            "  signal 1 data\n"
            "rank 1 lane 0\n"
            "  wait 0 data\n"
            "  copy scratch@1:0 -> output@1:0\n"
            "  signal 0 credit until_third_to_last\n");
}

TEST(Builder, SlotsAreNumberedSenderBySender) {
  Builder b(Collective::reduce, "x", 3, 4, 1);
  RankBuilder root = b.rank(1);
  root.recv_reduce(2, root.output(0, 3), root.input(0, 3), true);
  root.recv_reduce(0, root.output(3), root.input(3), true);
  b.rank(0).send(1, b.rank(0).input(3));
  b.rank(2).send(1, b.rank(2).input(0, 3));
  const Plan plan = b.finish();
  EXPECT_EQ(plan.slots, 4);
  EXPECT_EQ(plan.of_rank[0].lanes[0].steps[1].destinations[0], (Range{Space::scratch, 1, 0, 1}));
  EXPECT_EQ(plan.of_rank[2].lanes[0].steps[1].destinations[0], (Range{Space::scratch, 1, 1, 3}));
  // Received first, then own.
  const Step& reduce = plan.of_rank[1].lanes[0].steps[1];
  EXPECT_EQ(reduce.sources, (std::vector<Range>{{Space::scratch, 1, 1, 3}, {Space::input, 1, 0, 3}}));
  EXPECT_TRUE(reduce.last);
  EXPECT_FALSE(plan.rank_order);
}

TEST(Builder, ARelayReducesInItsInboundSlot) {
  Builder b(Collective::reduce, "x", 3, 1);
  b.rank(2).send(1, b.rank(2).input(0));
  b.rank(1).recv_reduce_send(2, b.rank(1).input(0), 0);
  b.rank(0).recv_reduce(1, b.rank(0).output(0), b.rank(0).input(0), true);
  const Plan plan = b.finish();
  const std::vector<Step>& steps = plan.of_rank[1].lanes[0].steps;
  ASSERT_EQ(steps.size(), 6U);
  EXPECT_EQ(steps[1].destinations[0], (Range{Space::scratch, 1, 0, 1}));
  EXPECT_EQ(steps[1].sources, (std::vector<Range>{{Space::scratch, 1, 0, 1}, {Space::input, 1, 0, 1}}));
  EXPECT_EQ(steps[3].kind, StepKind::put);
  EXPECT_EQ(steps[5].channel, Channel::credit);  // only now may the slot be written again
  EXPECT_EQ(steps[5].peer, 2);
}

TEST(Builder, AMessageWithoutAReceiveIsABrokenInvariant) {
  const auto unmatched = [] {
    Builder b(Collective::broadcast, "x", 2, 1);
    b.rank(0).send(1, b.rank(0).input(0));
    b.finish();
  };
  EXPECT_DEATH(unmatched(), "sent");
  const auto other_size = [] {
    Builder b(Collective::broadcast, "x", 2, 2);
    b.rank(0).send(1, b.rank(0).input(0, 2));
    b.rank(1).recv(0, b.rank(1).output(0));
    b.finish();
  };
  EXPECT_DEATH(other_size(), "sent");
  const auto crossed = [] {
    Builder b(Collective::broadcast, "x", 2, 1);
    b.rank(0).signal(1);
    b.rank(0).send(1, b.rank(0).input(0));
    b.rank(1).recv(0, b.rank(1).output(0));
    b.rank(1).wait(0);
    b.finish();
  };
  EXPECT_DEATH(crossed(), "data_signals");
  const auto no_credit = [] {
    Builder b(Collective::broadcast, "x", 2, 1);
    b.rank(0).reclaim(1);
    b.finish();
  };
  EXPECT_DEATH(no_credit(), "credit_waits");
}

TEST(PlanQueries, PeersShareScratchOrSignals) {
  Builder b(Collective::broadcast, "x", 4, 1);
  b.rank(0).send(2, b.rank(0).input(0));
  b.rank(2).recv(0, b.rank(2).output(0));
  const Plan plan = b.finish();
  EXPECT_EQ(peers_of(plan, 0), std::vector<int>{2});
  EXPECT_EQ(peers_of(plan, 2), std::vector<int>{0});
  EXPECT_TRUE(peers_of(plan, 1).empty());
  EXPECT_FALSE(needs_load_store(plan));
  EXPECT_FALSE(opens_peers(plan));
}

TEST(Layout, WhoHoldsWhat) {
  const auto holds = [](Collective collective, int root, Space space, int rank, int piece) {
    Plan plan;
    plan.collective = collective;
    plan.ranks = 3;
    plan.root = root;
    return plan::holds(plan, space, rank, piece);
  };
  EXPECT_TRUE(holds(Collective::all_reduce, 0, Space::input, 2, 1));
  EXPECT_FALSE(holds(Collective::all_gather, 0, Space::input, 2, 1));
  EXPECT_TRUE(holds(Collective::all_gather, 0, Space::input, 2, 2));
  EXPECT_TRUE(holds(Collective::all_gather, 0, Space::output, 2, 1));
  EXPECT_FALSE(holds(Collective::reduce_scatter, 0, Space::output, 2, 1));
  EXPECT_FALSE(holds(Collective::broadcast, 0, Space::input, 2, 0));
  EXPECT_TRUE(holds(Collective::broadcast, 0, Space::output, 2, 0));
  EXPECT_FALSE(holds(Collective::reduce, 0, Space::output, 2, 0));
  EXPECT_FALSE(holds(Collective::gather, 1, Space::output, 2, 0));
  EXPECT_TRUE(holds(Collective::gather, 1, Space::output, 1, 0));
  EXPECT_FALSE(holds(Collective::scatter, 1, Space::input, 2, 2));
  EXPECT_FALSE(holds(Collective::barrier, 0, Space::input, 0, 0));
  // The second parts of blocks.
  EXPECT_TRUE(holds(Collective::all_gather, 0, Space::input, 2, 5));
  EXPECT_FALSE(holds(Collective::reduce_scatter, 0, Space::output, 2, 4));
}

}  // namespace
}  // namespace tutti::plan::builder_test
