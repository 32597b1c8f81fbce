// Formulas against the numbers of a worked example: nanoGPT's CPU model, 809,856 parameters, f32, 4 ranks.
#include "training/trainers/expected_cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "training/pipeline/simulator.h"

namespace tutti::training::theory_test {
namespace {

constexpr double kElements = 809'856;
constexpr int kRanks = 4;

GptConfig worked_config() {
  GptConfig config;
  config.vocabulary = 65;
  return config;
}

/// The idle time divided by the time that is not idle.
double bubble_of_ideal(double bubble) { return bubble / (1 - bubble); }

/// Micro-batches whose activations rank r holds at the most; interleaved has no formula.
int pipeline_peak_live(std::string_view schedule, int p, int m, int r) {
  if (schedule == "gpipe") return m;
  return schedule == "1f1b" ? std::min(m, p - r) : std::min(m, p);
}

TEST(Theory, CountsAGpt) {
  const GptElements elements = gpt_elements(worked_config());
  EXPECT_EQ(elements.token + elements.position + 4 * elements.block() + elements.final_norm, kElements);
  for (const bool bias : {true, false}) {
    GptConfig config;
    config.layers = 3;
    config.width = 24;
    config.bias = bias;
    EXPECT_EQ(gpt_stage_elements(config, 0, 5, 1), static_cast<double>(Gpt(config)->parameter_count()));
    // Two stages hold all, the tied weights twice.
    EXPECT_EQ(gpt_stage_elements(config, 0, 2, 1) + gpt_stage_elements(config, 2, 5, 1),
              gpt_stage_elements(config, 0, 5, 1) + gpt_elements(config).token);
    EXPECT_EQ(gpt_stage_elements(config, 1, 3, 1), 2 * gpt_elements(config).block());
    EXPECT_EQ(gpt_stage_elements(config, 1, 3, 4),
              2 * (gpt_elements(config).block_cut / 4 + gpt_elements(config).block_whole));
  }
}

TEST(Theory, Claim2RingAllReduce) { EXPECT_EQ(all_reduce_bytes(4 * kElements, kRanks), 4'859'136); }

DataParallelStep step_of(ShardedState sharded) { return {sharded, kElements, 0, kRanks, 1, 1}; }

TEST(Theory, Claim3Zero1And2SendWhatDdpSends) {
  for (const ShardedState sharded : {ShardedState::none, ShardedState::optimizer, ShardedState::gradients}) {
    EXPECT_EQ(data_parallel_bytes(step_of(sharded)), 4'859'136);
  }
}

TEST(Theory, Claim4Zero3SendsHalfAsMuchMore) {
  EXPECT_EQ(data_parallel_bytes(step_of(ShardedState::parameters)), 7'288'704);
  DataParallelStep step = step_of(ShardedState::parameters);
  step.unresharded = 1000;  // a gather of these elements less
  EXPECT_EQ(data_parallel_bytes(step), 7'288'704 - 4 * 1000 * 3 / 4);
}

TEST(Theory, Claim9NoExchangeInAllButOnePassSavesBytes) {
  DataParallelStep step = step_of(ShardedState::none);
  step.passes = 4;
  EXPECT_EQ(data_parallel_bytes(step), 4'859'136);
  step.reductions = 4;
  EXPECT_EQ(data_parallel_bytes(step), 4 * 4'859'136);
}

TEST(Theory, OneRankSendsNothing) {
  for (const ShardedState sharded : {ShardedState::none, ShardedState::optimizer, ShardedState::parameters}) {
    EXPECT_EQ(data_parallel_bytes({sharded, kElements, 0, 1, 1, 1}), 0);
  }
}

TEST(Theory, Claim5MemoryInF32) {
  const auto megabytes = [](ShardedState sharded) { return adam_state(sharded, kElements, kRanks).total() / 1e6; };
  EXPECT_NEAR(megabytes(ShardedState::none), 12.96, 0.005);
  EXPECT_NEAR(megabytes(ShardedState::optimizer), 8.10, 0.005);
  EXPECT_NEAR(megabytes(ShardedState::gradients), 5.67, 0.005);
  EXPECT_NEAR(megabytes(ShardedState::parameters), 3.24, 0.005);
  const StateBytes one = adam_state(ShardedState::gradients, 1, kRanks);
  EXPECT_EQ(one.parameters, 4);
  EXPECT_EQ(one.gradients, 1);
  EXPECT_EQ(one.optimizer, 2);
}

TEST(Theory, Claim10BubbleOfGpipeAnd1F1B) {
  for (const char* schedule : {"gpipe", "1f1b"}) {
    EXPECT_NEAR(pipeline_bubble(schedule, 4, 8), 0.273, 0.0005);
    EXPECT_DOUBLE_EQ(bubble_of_ideal(pipeline_bubble(schedule, 4, 8)), 0.375);
  }
}

TEST(Theory, Claim12BubbleOfZeroBubbleH1) {
  EXPECT_NEAR(pipeline_bubble("zb-h1", 4, 8), 0.111, 0.0005);
  EXPECT_DOUBLE_EQ(bubble_of_ideal(pipeline_bubble("zb-h1", 4, 8)), 0.125);
}

TEST(Theory, BubblesAndLiveActivationsAreThoseOfTheSimulator) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = p; m <= 4 * p; m += p) {
      for (const char* name : {"gpipe", "1f1b", "interleaved", "zb-h1"}) {
        SCOPED_TRACE(::testing::Message() << name << ", p " << p << ", m " << m);
        const int v = std::string_view(name) == "interleaved" ? 3 : 1;
        const Simulation simulation = simulate(make_schedule(name, p, m, v));
        for (int r = 0; r < p; ++r) {
          const auto i = static_cast<std::size_t>(r);
          EXPECT_NEAR(simulation.idle[i], pipeline_bubble(name, p, m, v), 1e-12);
          const int live = pipeline_peak_live(name, p, m, r);
          if (std::string_view(name) == "zb-h1") {
            EXPECT_LE(simulation.peak_live[i], live);
          } else if (v == 1) {
            EXPECT_EQ(simulation.peak_live[i], live);  // claim 11
          }
        }
      }
    }
  }
}

// Claim 14, by hand: 1 block, 2 ranks, 10 tokens of width 4: each all-reduce sends 160 bytes, and the comparison 8.
TEST(Theory, BytesOfTensorParallelism) {
  GptConfig config;
  config.layers = 1;
  config.width = 4;
  config.context = 5;
  EXPECT_EQ(tensor_parallel_bytes(config, {1, 2, 2, 2}), 4 * 160 + 8);
  EXPECT_EQ(tensor_parallel_bytes(config, {1, 2, 2, 2, 2}), 3 * 160 + 8);
  EXPECT_EQ(tensor_parallel_bytes(config, {1, 2, 2, 2, 4, 1}), 6 * 160 + 8);
  EXPECT_EQ(tensor_parallel_bytes(config, {0, 3, 2, 2}), 6 * 160 + 3 * 4 * 10 + 8);
  EXPECT_EQ(tensor_parallel_bytes(config, {0, 3, 2, 1}), 0);
  // Sequence form: six halves per block in backward, and 24 elements per block that all ranks hold whole.
  EXPECT_EQ(tensor_parallel_bytes(config, {1, 2, 2, 2, 4, 0, true}), 5 * 160 + 4 * 24 + 8);
  EXPECT_EQ(tensor_parallel_bytes(config, {1, 2, 2, 2, 2, 1, true}), (5 + 2) * 80 + 4 * 24 + 8);
}

}  // namespace
}  // namespace tutti::training::theory_test
