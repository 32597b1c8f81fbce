// Small wrong plans, one for each thing that the proof must see, and the sentence that it says.
#include "collectives/plan/verify.h"

#include <gtest/gtest.h>

#include <string>

#include "collectives/algorithms/table.h"
#include "collectives/plan/builder.h"

namespace tutti::plan::verify_test {
namespace {

/// Two ranks, one line of steps for each, `header` as in "broadcast x ranks 2 ...".
Plan plan_of(const std::string& text) {
  Result<Plan> plan = parse(text);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return plan.ok() ? plan.take() : Plan{};
}

void expect_refused(const std::string& text, const std::string& sentence, const VerifyOptions& options = {}) {
  const Status status = verify(plan_of(text), options);
  ASSERT_FALSE(status.ok()) << "accepted:\n" << text;
  EXPECT_NE(status.message().find(sentence), std::string::npos) << status.message();
  EXPECT_EQ(status.message().find('\n'), std::string::npos);
}

const std::string kBroadcast = "broadcast x ranks 2 pieces 1 root 0 slots 1 published 1 rank_order yes\n";
const std::string kRoot =
    "rank 0 lane 0\n"
    "wait 1 credit from_third_round\n"
    "put 1 input@0:0 -> scratch@1:0\n"
    "signal 1 data\n"
    "copy input@0:0 -> output@0:0\n";
const std::string kLeaf =
    "rank 1 lane 0\n"
    "wait 0 data\n"
    "copy scratch@1:0 -> output@1:0\n"
    "signal 0 credit until_third_to_last\n";

TEST(Verify, ARightPlanPassesInAnyNumberOfRounds) {
  for (const int rounds : {1, 2, 3, 4, 7}) {
    for (const bool in_place : {false, true}) {
      EXPECT_TRUE(verify(plan_of(kBroadcast + kRoot + kLeaf), {.in_place = in_place, .rounds = rounds}).ok());
    }
  }
}

TEST(Verify, NoRankMayReadBeforeTheData) {
  expect_refused(kBroadcast + kRoot + "rank 1 lane 0\ncopy scratch@1:0 -> output@1:0\nwait 0 data\n" +
                     "signal 0 credit until_third_to_last\n",
                 "rank 1, lane 0, step 0, round 0: reads slot 0 of rank 1");
}

TEST(Verify, ASlotMayNotBeWrittenAgainBeforeItIsRead) {
  const std::string no_credit_root =
      "rank 0 lane 0\nput 1 input@0:0 -> scratch@1:0\nsignal 1 data\ncopy input@0:0 -> output@0:0\n";
  const std::string no_credit_leaf = "rank 1 lane 0\nwait 0 data\ncopy scratch@1:0 -> output@1:0\n";
  EXPECT_TRUE(verify(plan_of(kBroadcast + no_credit_root + no_credit_leaf), {.rounds = 2}).ok());
  expect_refused(kBroadcast + no_credit_root + no_credit_leaf, "slot 0 of rank 1", {.rounds = 3});
}

TEST(Verify, AWaitForEverIsNamed) {
  expect_refused(
      "barrier x ranks 2 pieces 1 root 0 slots 0 published 0 rank_order yes\n"
      "rank 0 lane 0\nwait 1 data\nsignal 1 data\n"
      "rank 1 lane 0\nwait 0 data\nsignal 0 data\n",
      "rank 0, lane 0, step 0, round 0: waits for rank 1 for ever");
}

TEST(Verify, SignalsMustBalance) {
  expect_refused(kBroadcast + kRoot + "signal 1 data\n" + kLeaf, "rank 0 gives rank 1 3 more data signals");
}

TEST(Verify, ABarrierMustHoldAllRanks) {
  expect_refused(
      "barrier x ranks 2 pieces 1 root 0 slots 0 published 0 rank_order yes\n"
      "rank 0 lane 0\nsignal 1 data\nrank 1 lane 0\nwait 0 data\n",
      "rank 0 leaves the barrier before rank 1");
}

TEST(Verify, AMissingResultIsNamed) {
  expect_refused(kBroadcast + kRoot + "rank 1 lane 0\nwait 0 data\nsignal 0 credit until_third_to_last\n",
                 "rank 1: piece 0 of its output is not right after round 0 (no step wrote it)");
}

const std::string kReduce = "reduce x ranks 2 pieces 1 root 0 slots 1 published 0 rank_order no\n";
const std::string kGiver =
    "rank 1 lane 0\nwait 0 credit from_third_round\nput 0 input@1:0 -> scratch@0:0\nsignal 0 data\n";
const std::string kCredit = "signal 1 credit until_third_to_last\n";

TEST(Verify, SumsHaveEachRankOnceAndDivideOnce) {
  const auto plan = [](const std::string& sum) {
    return kReduce + "rank 0 lane 0\nwait 1 data\n" + sum + kCredit + kGiver;
  };
  EXPECT_TRUE(verify(plan_of(plan("reduce last scratch@0:0 input@0:0 -> output@0:0\n"))).ok());
  expect_refused(plan("reduce last scratch@0:0 scratch@0:0 input@0:0 -> output@0:0\n"), "contribution twice");
  expect_refused(plan("reduce scratch@0:0 input@0:0 -> output@0:0\n"), "is not right");
  expect_refused(plan("reduce last scratch@0:0 -> output@0:0\n"), "is not right");
  expect_refused(plan("reduce last scratch@0:0 -> scratch@0:0\nreduce last scratch@0:0 input@0:0 -> output@0:0\n"),
                 "marked as the last one");
}

TEST(Verify, RankOrderMustBeWhatItSays) {
  const auto plan = [](const char* claim, const char* sum) {
    return std::string("reduce x ranks 2 pieces 1 root 0 slots 1 published 0 rank_order ") + claim +
           "\nrank 0 lane 0\nwait 1 data\n" + sum + kCredit + kGiver;
  };
  const char* in_order = "reduce last input@0:0 scratch@0:0 -> output@0:0\n";
  const char* reversed = "reduce last scratch@0:0 input@0:0 -> output@0:0\n";
  EXPECT_TRUE(verify(plan_of(plan("yes", in_order))).ok());
  EXPECT_TRUE(verify(plan_of(plan("no", reversed))).ok());
  expect_refused(plan("yes", reversed), "is not right");
}

const std::string kDirect = "broadcast x ranks 2 pieces 1 root 0 slots 0 published 0 rank_order yes\n";

TEST(Verify, APeersBufferIsOpenedFirstAndNotTouchedAfterItLeft) {
  const std::string root = "rank 0 lane 0\ncopy input@0:0 -> output@0:0\nwait 1 data\n";
  EXPECT_TRUE(
      verify(plan_of(kDirect + root + "rank 1 lane 0\nopen 0\ncopy input@0:0 -> output@1:0\nsignal 0 data\n")).ok());
  expect_refused(kDirect + root + "rank 1 lane 0\ncopy input@0:0 -> output@1:0\nsignal 0 data\n",
                 "before it has opened rank 0");
  expect_refused(kDirect + root + "rank 1 lane 0\nopen 0\nsignal 0 data\ncopy input@0:0 -> output@1:0\n",
                 "rank 0 may leave the call while rank 1 still touches piece 0 of its input");
}

TEST(Verify, BoundsAndShapes) {
  const auto leaf = [](const std::string& steps) {
    return kDirect + "rank 0 lane 0\ncopy input@0:0 -> output@0:0\nrank 1 lane 0\n" + steps;
  };
  expect_refused(leaf("copy input@0:1 -> output@1:0\n"), "range 1..1 is not within 0..0");
  expect_refused(leaf("copy input@7:0 -> output@1:0\n"), "rank 7 of 2 does not exist");
  expect_refused(leaf("copy input@1:0 -> output@1:0\n"), "rank 1 has no piece 0 in its input");
  expect_refused(leaf("copy output@1:0 -> input@1:0\n"), "the input belongs to the caller");
  expect_refused(leaf("open 1\n"), "peer 1 is not another rank of 2");
  expect_refused(leaf("put 0 output@1:0 -> output@1:0\n"), "a put writes to its peer's memory");
  expect_refused(kBroadcast + kRoot + "rank 1 lane 0\ncopy scratch@1:0 -> published@0:0\n", "written by their owner");
  expect_refused("all_reduce x ranks 1 pieces 2147483647 root 0 slots 0 published 0 rank_order no\nrank 0 lane 0\n",
                 "too large");
}

TEST(Verify, APieceThatOverlapsAnotherOfTheSameStep) {
  expect_refused(
      "all_reduce x ranks 1 pieces 3 root 0 slots 0 published 0 rank_order no\n"
      "rank 0 lane 0\ncopy input@0:0..2 -> output@0:0..2\ncopy output@0:0..1 -> output@0:1..2\n",
      "overlaps another piece of the same step");
}

TEST(Verify, LanesOfARankMustNotRaceEither) {
  const auto plan = [](const char* second) {
    return std::string(
               "broadcast x ranks 1 pieces 2 root 0 slots 0 published 0 rank_order yes\n"
               "rank 0 lane 0\ncopy input@0:0 -> output@0:0\nrank 0 lane 1\ncopy input@0:1 -> output@0:") +
           second + "\n";
  };
  EXPECT_TRUE(verify(plan_of(plan("1"))).ok());
  expect_refused(plan("0"),
                 "rank 0, lane 1, step 0, round 0: writes output piece 0 of rank 0 while rank 0, lane 0 writes it");
}

// In one round rank 1 reads the published slot without a signal; only the gate orders that against call 2.
TEST(VerifySequence, ScratchIsReusedUnderTheGateOnly) {
  const Plan plan = algorithms::find(Collective::broadcast, "one_shot")->build({Collective::broadcast, 2});
  for (const int rounds : {1, 2, 3}) {
    EXPECT_TRUE(verify_sequence({&plan, &plan, &plan, &plan, &plan}, {.rounds = rounds}).ok());
  }
}

}  // namespace
}  // namespace tutti::plan::verify_test
