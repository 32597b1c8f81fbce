// Claims about schedules, shown on the simulator: how long each rank is idle, what it holds, and that a wrong schedule
// is refused. Times are small multiples of 1, so all sums are exact.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "training/pipeline/schedule.h"
#include "training/pipeline/simulator.h"
#include "tutti/tutti.hpp"

namespace tutti::training::pipeline_schedule_test {
namespace {

using ::testing::HasSubstr;
using enum ActionKind;

constexpr double kForwardAndBackward = 3;  // F = 1, B = 2, or I = 1 and W = 1

template <class Body>
void for_many(Body body) {
  for (int p = 1; p <= 8; ++p) {
    for (int m : {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24}) {
      SCOPED_TRACE(::testing::Message() << "p " << p << ", m " << m);
      body(p, m);
    }
  }
}

std::vector<Schedule> all_schedules(int p, int m) {
  std::vector<Schedule> all{gpipe(p, m), one_forward_one_backward(p, m), zero_bubble_h1(p, m), forward_only(p, m),
                            forward_only(p, m, 2)};
  for (int v = 1; v <= 3 && m % p == 0; ++v) all.push_back(interleaved(p, m, v));
  return all;
}

std::string refusal(const Schedule& schedule) {
  try {
    simulate(schedule);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::invalid_argument);
    return error.what();
  }
  return "accepted";
}

TEST(Bubble, Claim10OfGpipeAndOf1F1BIsPMinus1OfMPlusPMinus1) {
  for_many([](int p, int m) {
    for (const Schedule& schedule : {gpipe(p, m), one_forward_one_backward(p, m)}) {
      const Simulation s = simulate(schedule);
      EXPECT_EQ(s.makespan, (m + p - 1) * kForwardAndBackward) << schedule.name;
      for (double idle : s.idle) EXPECT_DOUBLE_EQ(idle, (p - 1.0) / (m + p - 1)) << schedule.name;
    }
  });
}

TEST(Bubble, Claim10IsDividedByTheStagesPerRankWhenInterleaved) {
  for_many([](int p, int m) {
    if (m % p != 0) return;
    for (int v = 1; v <= 4; ++v) {
      const Simulation s = simulate(interleaved(p, m, v));
      const double ideal = m * v * kForwardAndBackward;
      EXPECT_DOUBLE_EQ((s.makespan - ideal) / ideal, (p - 1.0) / (m * v)) << "v " << v;
    }
  });
}

TEST(Bubble, Claim12OfZeroBubbleH1IsAThird) {
  for_many([](int p, int m) {
    const Simulation s = simulate(zero_bubble_h1(p, m));
    const double ideal = m * kForwardAndBackward;
    // With fewer micro-batches than ranks there is too little W to fill the drain: one more unit for each one missing.
    EXPECT_EQ(s.makespan, ideal + (p - 1) + std::max(0, p - m));
    if (m >= p) {
      EXPECT_DOUBLE_EQ((s.makespan - ideal) / ideal, (p - 1.0) / (3 * m));
    }
  });
}

TEST(PeakLive, Claim11IsAllOfThemForGpipeAndMinOfMAndPMinusRFor1F1B) {
  for_many([](int p, int m) {
    const Simulation all = simulate(gpipe(p, m)), few = simulate(one_forward_one_backward(p, m)),
                     split = simulate(zero_bubble_h1(p, m));
    for (int r = 0; r < p; ++r) {
      const auto i = static_cast<std::size_t>(r);
      EXPECT_EQ(all.peak_live[i], m);
      EXPECT_EQ(few.peak_live[i], std::min(m, p - r));
      EXPECT_LE(split.peak_live[i], std::min(m, p));
    }
  });
}

// Transfers that wait for each other in a bad order would show here: with free sends they must not cost anything.
TEST(Transfers, CostNothingWhenTheyTakeNoTime) {
  for_many([](int p, int m) {
    for (const Schedule& schedule : all_schedules(p, m)) {
      double last = 0;
      const Simulation s = simulate(schedule);
      for (const auto& rank : s.timeline) {
        for (const TimedAction& timed : rank) last = std::max(last, timed.end);
      }
      EXPECT_EQ(last, s.makespan) << schedule.name;
    }
  });
}

TEST(Transfers, NeverHangWhateverTheCosts) {
  const auto seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> cost(0.01, 10);
  for (int round = 0; round < 300; ++round) {
    const int p = 1 + static_cast<int>(random() % 6), m = p * (1 + static_cast<int>(random() % 4));
    for (const Schedule& schedule : all_schedules(p, m)) {
      Costs costs{cost(random), cost(random), cost(random), cost(random), cost(random), {}};
      for (int stage = 0; stage < schedule.stages; ++stage) costs.stage_factor.push_back(cost(random));
      EXPECT_NO_THROW(simulate(schedule, costs)) << schedule.name;
    }
  }
}

// So that every schedule adds gradients in the order of one process.
TEST(Order, OfBackwardsIsThatOfTheMicroBatches) {
  for_many([](int p, int m) {
    for (const Schedule& schedule : all_schedules(p, m)) {
      std::vector<int> next(static_cast<std::size_t>(schedule.stages));
      for (const auto& list : schedule.actions) {
        for (const Action& a : list) {
          if (a.kind != backward && a.kind != backward_weight) continue;
          EXPECT_EQ(a.micro_batch, next[static_cast<std::size_t>(a.stage)]++) << schedule.name;
        }
      }
    }
  });
}

TEST(Text, IsOneLineForEachRank) {
  EXPECT_EQ(to_text(one_forward_one_backward(2, 2)),
            "F0.0 SA0.0 F0.1 SA0.1 RG0.0 B0.0 RG0.1 B0.1\n"
            "RA1.0 F1.0 RA1.1 B1.0 SG1.0 F1.1 B1.1 SG1.1\n");
  EXPECT_EQ(to_text(zero_bubble_h1(1, 2)), "F0.0 I0.0 W0.0 F0.1 I0.1 W0.1\n");
}

TEST(Names, MakeTheSchedules) {
  for (const Schedule& schedule : {gpipe(2, 4), one_forward_one_backward(2, 4), zero_bubble_h1(2, 4)}) {
    EXPECT_EQ(to_text(make_schedule(schedule.name, 2, 4)), to_text(schedule));
  }
  EXPECT_EQ(to_text(make_schedule("interleaved", 2, 4, 3)), to_text(interleaved(2, 4, 3)));
  EXPECT_THROW(make_schedule("2f2b", 2, 4), Error);
  EXPECT_THROW(make_schedule("gpipe", 2, 4, 2), Error);
  EXPECT_THROW(interleaved(2, 3, 2), Error);
  EXPECT_THROW(gpipe(0, 1), Error);
  EXPECT_THROW(gpipe(1, 0), Error);
}

TEST(Refused, WhenTransfersOfTwoRanksWaitForEachOther) {
  Schedule schedule = gpipe(2, 2);
  schedule.actions = {{{forward, 0, 0},
                       {recv_gradient, 0, 0},
                       {send_activation, 0, 0},
                       {forward, 0, 1},
                       {send_activation, 0, 1},
                       {recv_gradient, 0, 1},
                       {backward, 0, 0},
                       {backward, 0, 1}},
                      {{recv_activation, 1, 0},
                       {recv_activation, 1, 1},
                       {forward, 1, 0},
                       {forward, 1, 1},
                       {backward, 1, 0},
                       {send_gradient, 1, 0},
                       {backward, 1, 1},
                       {send_gradient, 1, 1}}};
  EXPECT_EQ(refusal(schedule),
            "rank 0: simulate: schedule 'gpipe': waits for ever at B0.0 behind RG0.0, rank 1 at F1.0 behind RA1.0");
}

TEST(Refused, WhenSendsMeetOtherReceives) {
  Schedule schedule = gpipe(2, 2);
  auto& list = schedule.actions[0];
  std::swap(*std::find(list.begin(), list.end(), Action{send_activation, 0, 0}),
            *std::find(list.begin(), list.end(), Action{send_activation, 0, 1}));
  EXPECT_THAT(refusal(schedule), HasSubstr("SA0.1 comes before F0.1"));
  schedule = gpipe(2, 2);
  std::swap(*std::find(schedule.actions[1].begin(), schedule.actions[1].end(), Action{recv_activation, 1, 0}),
            *std::find(schedule.actions[1].begin(), schedule.actions[1].end(), Action{recv_activation, 1, 1}));
  EXPECT_THAT(refusal(schedule), ::testing::AnyOf(HasSubstr("meets"), HasSubstr("comes before RA1.0")));
}

TEST(Refused, WhenCalculationsWaitForEachOther) {
  Schedule schedule = gpipe(2, 1);
  schedule.actions = {{{backward, 0, 0}, {forward, 0, 0}}, {{forward, 1, 0}, {backward, 1, 0}}};
  EXPECT_THROW(add_transfers(schedule), Error);
}

TEST(Refused, WithTheSentence) {
  const auto drop = [](Schedule schedule, std::size_t rank, Action action) {
    std::erase(schedule.actions[rank], action);
    return refusal(schedule);
  };
  const Schedule good = one_forward_one_backward(2, 4);
  EXPECT_EQ(drop(good, 1, {recv_activation, 1, 2}), "rank 1: simulate: schedule '1f1b': F1.2 comes before RA1.2");
  EXPECT_EQ(drop(good, 1, {send_gradient, 1, 2}), "rank 1: simulate: schedule '1f1b': SG1.2 is missing");
  EXPECT_EQ(drop(good, 1, {backward, 1, 3}), "rank 1: simulate: schedule '1f1b': SG1.3 comes before its backward");
  EXPECT_EQ(drop(good, 0, {backward, 0, 3}), "rank 0: simulate: schedule '1f1b': B0.3 is missing");
  EXPECT_EQ(drop(zero_bubble_h1(2, 4), 0, {backward_weight, 0, 1}),
            "rank 0: simulate: schedule 'zb-h1': W0.1 is missing");

  Schedule twice = good;
  twice.actions[0].push_back({forward, 0, 1});
  EXPECT_EQ(refusal(twice), "rank 0: simulate: schedule '1f1b': F0.1 comes twice");
  Schedule stranger = good;
  stranger.actions[0].push_back({forward, 1, 1});
  EXPECT_EQ(refusal(stranger), "rank 0: simulate: schedule '1f1b': F1.1 belongs to rank 1");
  Schedule outside = good;
  outside.actions[0].push_back({forward, 0, 4});
  EXPECT_THAT(refusal(outside), HasSubstr("F0.4 is not one of 2 stages and 4 micro-batches"));
  Schedule end = good;
  end.actions[1].push_back({send_activation, 1, 0});
  EXPECT_THAT(refusal(end), HasSubstr("SA1.0 has no other rank at its other end"));
}

TEST(Refused, WheneverAnyActionIsLeftOut) {
  for (const Schedule& good : {gpipe(3, 3), one_forward_one_backward(3, 4), interleaved(2, 4, 2), zero_bubble_h1(3, 4),
                               forward_only(2, 3, 2)}) {
    for (std::size_t r = 0; r < good.actions.size(); ++r) {
      for (std::size_t i = 0; i < good.actions[r].size(); ++i) {
        Schedule bad = good;
        bad.actions[r].erase(bad.actions[r].begin() + static_cast<std::ptrdiff_t>(i));
        EXPECT_NE(refusal(bad), "accepted") << good.name << ": " << to_text(good.actions[r][i]);
      }
    }
  }
}

// Two actions exchanged: either it is refused, or all tensors still arrive. What is never accepted: two transfers with
// the same peer in the same direction exchanged on one side only.
TEST(Refused, WhenTwoTransfersChangePlaces) {
  for (const Schedule& good :
       {gpipe(3, 3), one_forward_one_backward(3, 4), interleaved(2, 4, 2), zero_bubble_h1(3, 4)}) {
    for (std::size_t r = 0; r < good.actions.size(); ++r) {
      const auto& list = good.actions[r];
      for (std::size_t i = 0; i < list.size(); ++i) {
        for (std::size_t k = i + 1; k < list.size(); ++k) {
          if (!is_transfer(list[i].kind) || !is_transfer(list[k].kind)) continue;
          if (is_send(list[i].kind) != is_send(list[k].kind) || good.peer_of(list[i]) != good.peer_of(list[k]))
            continue;
          Schedule bad = good;
          std::swap(bad.actions[r][i], bad.actions[r][k]);
          EXPECT_NE(refusal(bad), "accepted") << good.name << ": " << to_text(list[i]) << " and " << to_text(list[k]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tutti::training::pipeline_schedule_test
