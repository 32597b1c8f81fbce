#include <gtest/gtest.h>

#include <cstddef>
#include <random>
#include <string>
#include <utility>

#include "collectives/algorithms/common/samples.h"
#include "collectives/plan/builder.h"

namespace tutti::plan::text_test {
namespace {

TEST(Text, EveryPlanComesBackAsItWas) {
  for (const algorithms::Algorithm& algorithm : algorithms::table()) {
    for (const int ranks : {1, 2, 3, 6, 9}) {
      for (const algorithms::PlanRequest& request : algorithms::sample_requests(algorithm, ranks)) {
        const Plan plan = algorithm.build(request);
        const Result<Plan> back = parse(print(plan));
        ASSERT_TRUE(back.ok()) << algorithm.name << ": " << back.status().message();
        ASSERT_EQ(back.value(), plan) << name_of(algorithm.collective) << " " << algorithm.name << ", " << ranks;
      }
    }
  }
}

TEST(Text, LanesComeBackToo) {
  Builder b(Collective::broadcast, "two_lanes", 2, 2, 1);
  for (int lane = 0; lane < 2; ++lane) {
    RankBuilder receiver = b.rank(0);
    receiver.lane(lane);
    receiver.recv(1, receiver.output(lane));
    RankBuilder sender = b.rank(1);
    sender.lane(lane);
    sender.send(0, sender.input(lane));
  }
  const Plan plan = b.finish();
  const Result<Plan> back = parse(print(plan));
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back.value(), plan);
  EXPECT_EQ(plan.of_rank[0].lanes.size(), 2U);
}

const char* const kHeader = "barrier x ranks 1 pieces 1 root 0 slots 0 published 0 rank_order yes\n";

TEST(Text, CommentsAndBlankLinesAreSkipped) {
  EXPECT_TRUE(parse(std::string("# a plan\n\n") + kHeader + "  # of one rank\nrank 0 lane 0\r\n\n").ok());
}

TEST(Text, BadTextIsOneSentenceWithTheLine) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "line 0: the text is empty"},
      {"all_reduce ring", "line 1: expected '<collective>"},
      {"all_reduse x ranks 1 pieces 1 root 0 slots 0 published 0 rank_order yes", "'all_reduse' is not a collective"},
      {"barrier x ranks 9999999 pieces 1 root 0 slots 0 published 0 rank_order yes", "ranks must be 1 to"},
      {"barrier x ranks 99999999999 pieces 1 root 0 slots 0 published 0 rank_order yes", "expected 'ranks N'"},
      {"barrier x ranks 2 pieces 1 root 2 slots 0 published 0 rank_order yes", "the root must be"},
      {kHeader, "the text ends after rank -1 of 1"},
      {std::string(kHeader) + "signal 0 data", "line 2: expected 'rank 0 lane 0'"},
      {std::string(kHeader) + "rank 1 lane 0", "line 2: ranks and their lanes must come in order"},
      {std::string(kHeader) + "rank 0 lane 0\njump 1", "line 3: 'jump' is not a step"},
      {std::string(kHeader) + "rank 0 lane 0\nwait -1 data", "needs the number of a peer"},
      {std::string(kHeader) + "rank 0 lane 0\nwait 1", "needs 'data' or 'credit'"},
      {std::string(kHeader) + "rank 0 lane 0\nwait 1 data soon", "'soon' is not a guard"},
      {std::string(kHeader) + "rank 0 lane 0\nopen 1 2", "'2' is one word too many"},
      {std::string(kHeader) + "rank 0 lane 0\ncopy input@0:0", "expected 'sources -> destinations'"},
      {std::string(kHeader) + "rank 0 lane 0\ncopy input@0:5..3 -> output@0:0", "is not a range"},
      {std::string(kHeader) + "rank 0 lane 0\ncopy input@0:0..2147483647 -> output@0:0", "is not a range"},
      {std::string(kHeader) + "rank 0 lane 0\n\x01\xff", "' is not a step"},
  };
  for (const auto& [text, expected] : cases) {
    const Result<Plan> result = parse(text);
    ASSERT_FALSE(result.ok()) << text;
    EXPECT_NE(result.status().message().find(expected), std::string::npos) << result.status().message();
    EXPECT_EQ(result.status().message().find('\n'), std::string::npos);
  }
}

TEST(Text, GarbledPlansNeverCrashTheParser) {
  const unsigned seed = std::random_device{}();
  std::mt19937 random(seed);
  const std::string text = print(algorithms::find(Collective::all_reduce, "ring")->build({Collective::all_reduce, 4}));
  int accepted = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    std::string garbled = text;
    for (unsigned edits = 1 + random() % 4; edits > 0; --edits) {
      const std::size_t at = random() % garbled.size();
      switch (random() % 3) {
        case 0: garbled[at] = static_cast<char>(random()); break;
        case 1: garbled.erase(at, 1 + random() % 20); break;
        default: garbled.insert(at, garbled.substr(random() % garbled.size(), random() % 20)); break;
      }
      if (garbled.empty()) garbled = " ";
    }
    const Result<Plan> result = parse(garbled);
    if (!result.ok()) continue;
    ++accepted;
    const Result<Plan> again = parse(print(result.value()));
    ASSERT_TRUE(again.ok()) << "seed " << seed << ": " << again.status().message();
    ASSERT_EQ(again.value(), result.value()) << "seed " << seed;
  }
  EXPECT_GT(accepted, 0) << "seed " << seed;
}

}  // namespace
}  // namespace tutti::plan::text_test
