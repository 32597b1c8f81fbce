// Activation checkpointing with ranks and with the model: the reference is the same run without it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/training/checkpointing/checkpoint_parts.h"
#include "tests/training/on_ranks.h"
#include "training/checkpointing/checkpoint_blocks.h"
#include "training/ddp/ddp.h"
#include "training/models/gpt.h"

namespace tutti::training::checkpoint_training_test {
namespace {

// Dropout draws from each rank's own generator: the default one is shared by the threads that are the ranks here.
TEST(CheckpointTraining, UnderDistributedDataParallelWithOverlap) {
  constexpr int kSize = 2, kParts = 3;
  struct Stack : torch::nn::Module {
    explicit Stack(std::uint64_t seed) {
      for (std::uint64_t i = 0; i < kParts; ++i) {
        parts.push_back(
            register_module("part" + std::to_string(i), CheckpointedPart(10 * seed + i, /*own_generator=*/true)));
      }
    }
    std::vector<CheckpointedPart> parts;
  };
  DdpOptions options;
  options.first_bucket_bytes = 64;
  options.bucket_bytes = 1024;
  options.deterministic = true;
  std::vector<Tensors> results;
  for (const bool with : {false, true}) {
    std::vector<std::unique_ptr<Stack>> stacks;
    std::vector<torch::Tensor> rows;
    for (int rank = 0; rank < kSize; ++rank) {
      stacks.push_back(std::make_unique<Stack>(static_cast<std::uint64_t>(rank + 1)));
      torch::manual_seed(static_cast<std::uint64_t>(rank));
      rows.push_back(torch::randn({5, 7}));
    }
    const auto errors = on_ranks(kSize, [&](int rank, Communicator comm) {
      Stack& stack = *stacks[static_cast<std::size_t>(rank)];
      DistributedDataParallel ddp(stack, comm, options);
      for (int step = 0; step < 2; ++step) {
        std::uint64_t started = 0;  // when the first part, the last in backward, ran again
        torch::Tensor x = rows[static_cast<std::size_t>(rank)];
        if (with) {
          CheckpointedPart first = stack.parts[0];
          x = checkpoint(
              *first,
              [&, first](const torch::Tensor& input) mutable {
                started = ddp.stats().reductions;
                return first->forward(input);
              },
              x, first->options());
          EXPECT_EQ(started, static_cast<std::uint64_t>(step) * ddp.buckets().size());
        } else {
          x = stack.parts[0]->forward(x);
        }
        for (std::size_t i = 1; i < kParts; ++i) x = run(stack.parts[i], x, with);
        x.pow(2).mean().backward();
        EXPECT_TRUE(!with || started > static_cast<std::uint64_t>(step) * ddp.buckets().size());
      }
      EXPECT_EQ(ddp.stats().passes, 2u);
      EXPECT_EQ(ddp.stats().reductions, 2 * ddp.buckets().size());
    });
    EXPECT_EQ(errors, nothing(kSize));
    for (const auto& stack : stacks) results.push_back(all_gradients_of(*stack));
  }
  for (std::size_t i = 1; i < results.size(); ++i) expect_same(results[0], results[i]);
}

GptConfig small_gpt(double dropout) {
  GptConfig config;
  config.layers = 5;
  config.width = 32;
  config.context = 16;
  config.dropout = dropout;
  return config;
}

class Every : public ::testing::TestWithParam<int> {};

TEST_P(Every, BlockOfAGptTrainsToTheSameBits) {
  expect_same_with_and_without([&](bool with) {
    torch::manual_seed(6);
    Gpt model(small_gpt(0.1));
    if (with) checkpoint_blocks(model, GetParam());
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
    const torch::Tensor rows = torch::randint(256, {4, 17}, torch::kInt64);
    Tensors losses;
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      losses.push_back(model->loss(rows.slice(1, 0, 16), rows.slice(1, 1, 17).contiguous()));
      losses.back().backward();
      optimizer.step();
    }
    for (const torch::Tensor& parameter : model->parameters()) losses.push_back(parameter);
    return losses;
  });
}

INSTANTIATE_TEST_SUITE_P(CheckpointTraining, Every, ::testing::Values(0, 1, 2, 3, 9),
                         ::testing::PrintToStringParamName());

TEST(CheckpointTraining, EachSecondBlockOfAGptRunsAgain) {
  Gpt model(small_gpt(0));
  std::vector<int> runs(5);
  model->set_block_runner([&](GptBlock& block, int index, const torch::Tensor& x) {
    auto function = [&runs, block, index](const torch::Tensor& input) mutable {
      ++runs[static_cast<std::size_t>(index)];
      return block->forward(input);
    };
    return index % 2 == 0 ? checkpoint(*block, function, x) : function(x);
  });
  model->forward(torch::zeros({1, 16}, torch::kInt64)).sum().backward();
  EXPECT_EQ(runs, (std::vector<int>{2, 1, 2, 1, 2}));
  EXPECT_EQ(message_of([&] { checkpoint_blocks(model, -1); }),
            "checkpoint_blocks: every is -1; it can be 0 (none) or more");
}

TEST(CheckpointTraining, AGptUnderDistributedDataParallel) {
  std::vector<Tensors> results;
  for (const bool with : {false, true}) {
    torch::manual_seed(8);
    const torch::Tensor rows = torch::randint(256, {2, 4, 17}, torch::kInt64);
    std::vector<Gpt> models;
    for (int rank = 0; rank < 2; ++rank) models.emplace_back(small_gpt(0));
    const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
      Gpt& model = models[static_cast<std::size_t>(rank)];
      if (with) checkpoint_blocks(model, 1);
      DdpOptions options;
      options.first_bucket_bytes = 1024;
      options.bucket_bytes = 16384;
      DistributedDataParallel ddp(*model, comm, options);
      model->loss(rows[rank].slice(1, 0, 16), rows[rank].slice(1, 1, 17).contiguous()).backward();
      EXPECT_EQ(ddp.stats().passes, 1u);
    });
    EXPECT_EQ(errors, nothing(2));
    for (const Gpt& model : models) results.push_back(all_gradients_of(*model));
  }
  ASSERT_EQ(results.size(), 4u);
  for (const Tensors& gradients : results) expect_same(gradients, results[0]);
}

}  // namespace
}  // namespace tutti::training::checkpoint_training_test
