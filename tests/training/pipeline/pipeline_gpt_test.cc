// A GPT whose embedding and output layer share their weights, cut into stages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/training/on_ranks.h"
#include "tests/training/pipeline/pipeline_parts.h"
#include "training/pipeline/gpt_stages.h"
#include "training/pipeline/partition.h"
#include "training/pipeline/pipeline.h"

namespace tutti::training::pipeline_gpt_test {
namespace {

GptConfig small_config() {
  GptConfig config;
  config.layers = 6;
  config.heads = 2;
  config.width = 16;
  config.context = kTime;
  config.vocabulary = kTokens;
  return config;
}

Gpt make_gpt(std::uint64_t seed = 4) {
  torch::manual_seed(seed);
  return Gpt(small_config());
}

double accumulate_gpt(Gpt& gpt, const Batches& batches) {
  return accumulate(batches, gpt_loss(), [&](const torch::Tensor& x) { return gpt->forward(x); });
}

/// The gradients that the embedding (with `head` false) or the output layer adds to their shared weights: one for each
/// micro-batch.
Tensors parts_of_shared_gradient(const Batches& batches, bool head) {
  Gpt gpt = make_gpt();
  GptParts front = gpt->parts(), back = front;
  back.token = torch::nn::Embedding(kTokens, small_config().width);
  {
    torch::NoGradGuard no_grad;
    back.token->weight.copy_(front.token->weight);
  }
  torch::Tensor weight = head ? back.token->weight : front.token->weight;
  double total = 0;
  for (const torch::Tensor& target : batches.targets) total += gpt_loss().weight(target);
  Tensors gradients;
  for (std::size_t i = 0; i < batches.inputs.size(); ++i) {
    torch::Tensor x = front.embed(batches.inputs[i]);
    for (GptBlock& block : front.blocks) x = block->forward(x);
    gpt_loss().value(back.head(x), batches.targets[i]).div(total).backward();
    gradients.push_back(weight.grad().clone());
    weight.mutable_grad().reset();
  }
  return gradients;
}

torch::Tensor sum_in_order(const Tensors& terms) {
  torch::Tensor sum = terms[0].clone();
  for (std::size_t i = 1; i < terms.size(); ++i) sum += terms[i];
  return sum;
}

class PipelineGptRanks : public ::testing::TestWithParam<int> {};

TEST_P(PipelineGptRanks, TrainAGptThatIsCutIntoStages) {
  const int size = GetParam(), micro_batches = 2 * size;
  const Batches batches = make_batches(micro_batches);
  for (const std::string name : {"gpipe", "1f1b", "interleaved", "zb-h1"}) {
    const Schedule schedule = make_schedule(name, size, micro_batches, name == "interleaved" ? 2 : 1);
    const auto cuts = balanced_partition(gpt_costs(small_config()), schedule.stages);
    std::vector<Gpt> gpts;
    for (int rank = 0; rank < size; ++rank) gpts.push_back(make_gpt());
    {
      torch::NoGradGuard no_grad;  // tie() must repair this
      if (size > 1) gpts.back()->parts().token->weight.add_(1);
    }
    std::vector<std::vector<GptStage>> stages(static_cast<std::size_t>(size));
    std::vector<double> losses(static_cast<std::size_t>(size));
    const auto errors = on_ranks(size, [&](int rank, Communicator comm) {
      const auto r = static_cast<std::size_t>(rank);
      std::vector<Stage> mine;
      torch::Tensor shared;
      for (int s = rank; s < schedule.stages; s += size) {
        stages[r].push_back(gpt_stage(gpts[r], cuts, static_cast<std::size_t>(s)));
        mine.push_back(make_stage(stages[r].back()));
        if (stages[r].back()->token_weight().defined()) shared = stages[r].back()->token_weight();
      }
      Pipeline pipeline(mine, comm, schedule, gpt_loss());
      Communicator ends = comm.split(shared.defined() ? 0 : -1, rank);
      if (shared.defined() && size > 1) pipeline.tie(shared, ends);
      losses[r] = pipeline.run(batches.inputs, batches.targets).loss;
    });
    ASSERT_EQ(errors, nothing(size)) << name;

    Gpt reference = make_gpt();
    const double loss = accumulate_gpt(reference, batches);
    EXPECT_THAT(losses, ::testing::Each(loss)) << name;
    const auto expected = reference->named_parameters();
    std::size_t compared = 0;
    for (const auto& of_rank : stages) {
      for (const GptStage& stage : of_rank) {
        for (const auto& item : stage->named_parameters()) {
          ++compared;
          if (schedule.stages > 1 && item.key() == "token.weight") continue;  // added in another order
          EXPECT_TRUE(same_bits(item.value().grad(), expected[item.key()].grad())) << name << " " << item.key();
        }
      }
    }
    EXPECT_EQ(compared, expected.size() + (schedule.stages > 1 ? 1 : 0));
    if (size == 1) continue;

    // First the embedding's gradients in the order of the micro-batches, then the output layer's, then their sum.
    const Tensors front = parts_of_shared_gradient(batches, false), back = parts_of_shared_gradient(batches, true);
    const torch::Tensor shared = gpts.front()->parts().token->weight.grad();
    EXPECT_TRUE(same_bits(shared, sum_in_order(front) + sum_in_order(back))) << name;
    EXPECT_TRUE(same_bits(shared, gpts.back()->parts().token->weight.grad())) << name;
    // One process adds the same 2 m terms in another order. Each of its 2 m - 1 additions, and of ours, rounds by at
    // most 2^-24 of a partial sum, which is at most the sum of the terms' sizes (2^-23: and that sum's own rounding).
    torch::Tensor sizes = torch::zeros_like(shared);
    for (const Tensors* terms : {&front, &back}) {
      for (const torch::Tensor& term : *terms) sizes += term.abs();
    }
    const torch::Tensor bound = sizes * (2.0 * (2 * micro_batches - 1) * std::ldexp(1.0, -23));
    EXPECT_TRUE(((shared - expected["token.weight"].grad()).abs() <= bound).all().item<bool>()) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Pipeline, PipelineGptRanks, ::testing::Values(1, 2, 3, 4));

TEST(Tie, SumsOnlyWhatTheRunHasAdded) {
  const Batches batches = make_batches(2);
  const Schedule schedule = gpipe(2, 2);
  std::vector<Gpt> gpts{make_gpt(), make_gpt()};
  const std::vector<std::size_t> cuts{0, 4, 8};
  torch::Tensor once;
  const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
    GptStage part = gpt_stage(gpts[static_cast<std::size_t>(rank)], cuts, static_cast<std::size_t>(rank));
    Pipeline pipeline({make_stage(part)}, comm, schedule, gpt_loss());
    pipeline.tie(part->token_weight(), comm.split(0, rank));
    pipeline.run(batches.inputs, batches.targets);
    if (rank == 0) once = part->token_weight().grad().clone();
    pipeline.run(batches.inputs, batches.targets);
  });
  EXPECT_EQ(errors, nothing(2));
  for (Gpt& gpt : gpts) EXPECT_TRUE(same_bits(gpt->parts().token->weight.grad(), once + once));
}

TEST(Tie, T13AFrozenWeightGetsNoGradient) {
  const Batches batches = make_batches(2);
  const Schedule schedule = gpipe(2, 2);
  std::vector<Gpt> gpts{make_gpt(), make_gpt()};
  const std::vector<std::size_t> cuts{0, 4, 8};
  const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
    GptStage part = gpt_stage(gpts[static_cast<std::size_t>(rank)], cuts, static_cast<std::size_t>(rank));
    torch::Tensor weight = part->token_weight();
    weight.requires_grad_(false);
    Pipeline pipeline({make_stage(part)}, comm, schedule, gpt_loss());
    pipeline.tie(weight, comm.split(0, rank));
    pipeline.run(batches.inputs, batches.targets);
    EXPECT_FALSE(weight.grad().defined());
  });
  EXPECT_EQ(errors, nothing(2));
}

TEST(Tie, RefusesAnotherShape) {
  std::vector<torch::Tensor> weights{torch::ones({2, 3}), torch::ones({3, 2})};
  std::vector<Part> parts = make_parts(2);
  const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
    const Schedule schedule = gpipe(2, 1);
    Pipeline pipeline(stages_of(parts, schedule, rank), comm, schedule, token_loss());
    pipeline.tie(weights[static_cast<std::size_t>(rank)], comm.split(0, rank));
  });
  EXPECT_THAT(errors,
              ::testing::Each(::testing::HasSubstr("the parameter of rank 1 of the sharers is not a contiguous")));
}

TEST(GptStages, TogetherAreTheWholeModel) {
  torch::set_num_threads(1);
  Gpt gpt = make_gpt();
  const Batches batches = make_batches(1);
  for (int parts = 1; parts <= 8; ++parts) {
    const auto cuts = balanced_partition(gpt_costs(small_config()), parts);
    torch::Tensor x = batches.inputs[0];
    for (std::size_t s = 0; s + 1 < cuts.size(); ++s) x = gpt_stage(gpt, cuts, s)->forward(x);
    EXPECT_TRUE(same_bits(x, gpt->forward(batches.inputs[0])));
  }
  EXPECT_THROW(gpt_stage(gpt, {0, 4, 7}, 0), Error);
  EXPECT_THROW(gpt_stage(gpt, {0, 4, 4, 8}, 0), Error);
  EXPECT_THROW(gpt_stage(gpt, {0, 4, 8}, 2), Error);
}

}  // namespace
}  // namespace tutti::training::pipeline_gpt_test
