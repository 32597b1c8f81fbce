// Strategies on top of each other: pipeline and tensor parallel with activation checkpointing and with
// DistributedDataParallel. The reference is one process.
#include <gtest/gtest.h>

#include <barrier>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/training/on_ranks.h"
#include "tests/training/pipeline/pipeline_parts.h"
#include "training/abort.h"
#include "training/checkpointing/checkpoint_blocks.h"
#include "training/ddp/ddp.h"
#include "training/fsdp/fsdp.h"
#include "training/pipeline/gpt_stages.h"
#include "training/pipeline/partition.h"
#include "training/tensor/gpt_tensor.h"

namespace tutti::training::combined_test {
namespace {

GptConfig config_of(double dropout = 0) {
  GptConfig config;
  config.layers = 6;
  config.heads = 6;
  config.width = 12;
  config.context = 6;
  config.vocabulary = kTokens;
  config.dropout = dropout;
  return config;
}

Gpt make_gpt(const GptConfig& config, torch::ScalarType type = torch::kFloat32) {
  torch::manual_seed(4);
  Gpt gpt(config);
  gpt->to(type);
  const torch::NoGradGuard no_grad;
  for (torch::Tensor& parameter : gpt->parameters()) parameter += 0.1 * torch::randn_like(parameter);
  return gpt;
}

class PipelineOnRanks : public ::testing::TestWithParam<int> {};

// Also with ZB-H1, whose backward goes through each stage twice.
TEST_P(PipelineOnRanks, Claim22CheckpointingGivesTheSameBitsForOneMoreForward) {
  const int size = GetParam(), micro_batches = 2 * size;
  const Batches batches = make_batches(micro_batches);
  torch::set_num_threads(1);  // as on ranks: bits depend on it
  Gpt reference = make_gpt(config_of());
  accumulate(batches, gpt_loss(), [&](const torch::Tensor& x) { return reference->forward(x); });
  const auto expected = reference->named_parameters();
  for (const std::string name : {"gpipe", "1f1b", "interleaved", "zb-h1"}) {
    const Schedule schedule = make_schedule(name, size, micro_batches, name == "interleaved" ? 2 : 1);
    const auto cuts = balanced_partition(gpt_costs(config_of()), schedule.stages);
    std::vector<Gpt> gpts;
    for (int rank = 0; rank < size; ++rank) gpts.push_back(make_gpt(config_of()));
    const auto errors = on_ranks(size, [&](int rank, Communicator comm) {
      Gpt& gpt = gpts[static_cast<std::size_t>(rank)];
      std::vector<Stage> stages;
      std::vector<GptStage> parts;
      std::vector<int> runs(6);
      for (int s = rank; s < schedule.stages; s += size) {
        parts.push_back(gpt_stage(gpt, cuts, static_cast<std::size_t>(s)));
        parts.back()->set_block_runner([&runs](GptBlock& block, int index, const torch::Tensor& x) {
          const CheckpointFunction function = [&runs, block, index](const torch::Tensor& input) mutable {
            ++runs[static_cast<std::size_t>(index)];
            return block->forward(input);
          };
          return checkpoint(*block, function, x, {.default_generators = false});
        });
        stages.push_back(make_stage(parts.back()));
      }
      Pipeline(stages, comm, schedule, gpt_loss()).run(batches.inputs, batches.targets);
      for (const GptStage& part : parts) {
        for (const auto& item : part->named_parameters()) {
          if (item.key() == "token.weight" && schedule.stages > 1) continue;  // tied, pipeline_gpt_test.cc
          EXPECT_TRUE(same_bits(item.value().grad(), expected[item.key()].grad())) << name << " " << item.key();
        }
        for (int i = 0; i < 6; ++i) {
          if (!part->named_children().contains("block" + std::to_string(i))) continue;
          EXPECT_EQ(runs[static_cast<std::size_t>(i)], 2 * micro_batches) << name << " block " << i;
        }
      }
    });
    EXPECT_EQ(errors, nothing(size)) << name;
  }
}

TEST_P(PipelineOnRanks, CheckpointBlocksCountsInTheWholeModel) {
  const int size = GetParam();
  const auto cuts = balanced_partition(gpt_costs(config_of()), size);
  const Batches batches = make_batches(size);
  const Schedule schedule = one_forward_one_backward(size, size);
  torch::set_num_threads(1);  // as on ranks: bits depend on it
  Gpt reference = make_gpt(config_of());
  accumulate(batches, gpt_loss(), [&](const torch::Tensor& x) { return reference->forward(x); });
  std::vector<Gpt> gpts;
  for (int rank = 0; rank < size; ++rank) gpts.push_back(make_gpt(config_of()));
  const auto errors = on_ranks(size, [&](int rank, Communicator comm) {
    GptStage part = gpt_stage(gpts[static_cast<std::size_t>(rank)], cuts, static_cast<std::size_t>(rank));
    checkpoint_blocks(part, 2, {.default_generators = false});
    Pipeline({make_stage(part)}, comm, schedule, gpt_loss()).run(batches.inputs, batches.targets);
    for (const auto& item : part->named_parameters()) {
      if (item.key() == "token.weight" && size > 1) continue;
      EXPECT_TRUE(same_bits(item.value().grad(), reference->named_parameters()[item.key()].grad())) << item.key();
    }
  });
  EXPECT_EQ(errors, nothing(size));
}

INSTANTIATE_TEST_SUITE_P(Combined, PipelineOnRanks, ::testing::Values(1, 2, 3, 4), ::testing::PrintToStringParamName());

constexpr int kReplicas = 2, kStages = 2, kMicroBatches = 4, kSize = kReplicas * kStages;

/// Replicas of a pipeline, each with batches of its own, and one process in the place of each.
struct References {
  std::vector<Batches> batches;
  double total = 0;  // weight of all replicas' tokens
  std::vector<std::vector<Part>> parts;
};

References make_references() {
  References references;
  for (int replica = 0; replica < kReplicas; ++replica) {
    references.batches.push_back(make_batches(kMicroBatches, static_cast<std::uint64_t>(20 + replica)));
    for (const torch::Tensor& target : references.batches.back().targets)
      references.total += token_loss().weight(target);
  }
  torch::set_num_threads(1);
  for (const Batches& mine : references.batches) {
    references.parts.push_back(make_parts(kStages));
    accumulate_parts(references.parts.back(), mine, token_loss(), references.total / kReplicas);
  }
  return references;
}

std::vector<Schedule> schedules() {
  return {one_forward_one_backward(kStages, kMicroBatches), gpipe(kStages, kMicroBatches),
          zero_bubble_h1(kStages, kMicroBatches)};
}

// Two replicas of a pipeline: (a + b) / 2 has one rounding whatever the order, so the bits are those of one process.
TEST(Combined, PipelineUnderDistributedDataParallelGivesTheBitsOfOneProcess) {
  const References references = make_references();
  for (const Schedule& schedule : schedules()) {
    std::vector<std::vector<Part>> replicas{make_parts(kStages), make_parts(kStages)};
    const auto errors = on_ranks(kSize, [&](int rank, Communicator world) {
      const int replica = rank / kStages, stage = rank % kStages;
      Communicator pp = world.split(replica, rank), dp = world.split(stage, rank);
      std::vector<Part>& parts = replicas[static_cast<std::size_t>(replica)];
      Part part = parts[static_cast<std::size_t>(stage)];
      or_abort({world, pp, dp}, "training step", [&] {
        DistributedDataParallel ddp(*part, dp);
        Pipeline pipeline({make_stage(part)}, pp, schedule, token_loss());
        for (int step = 0; step < 2; ++step) {
          ddp.zero_grad();
          {
            const auto guard = ddp.no_sync();
            const Batches& mine = references.batches[static_cast<std::size_t>(replica)];
            pipeline.run(mine.inputs, mine.targets, {.total_weight = references.total / kReplicas});
          }
          ddp.average_gradients();
          EXPECT_EQ(ddp.stats().passes, static_cast<std::uint64_t>(step + 1));
        }
      });
    });
    ASSERT_EQ(errors, nothing(kSize)) << schedule.name;
    for (std::size_t stage = 0; stage < kStages; ++stage) {
      const Tensors a = references.parts[0][stage]->parameters(), b = references.parts[1][stage]->parameters();
      for (const std::vector<Part>& parts : replicas) {
        const Tensors mine = parts[stage]->parameters();
        for (std::size_t i = 0; i < mine.size(); ++i) {
          if (!mine[i].requires_grad()) continue;
          EXPECT_TRUE(same_bits(mine[i].grad(), (a[i].grad() + b[i].grad()) / 2)) << schedule.name << " " << i;
        }
      }
    }
  }
}

// The same with each stage sharded over its replicas: ZeRO under a pipeline.
TEST(Combined, PipelineOfShardedStagesGivesTheBitsOfOneProcess) {
  const References references = make_references();
  for (const Sharding sharding : {Sharding::zero1, Sharding::zero2, Sharding::zero3}) {
    for (const Schedule& schedule : schedules()) {
      std::vector<std::vector<Part>> replicas{make_parts(kStages), make_parts(kStages)};
      const auto errors = on_ranks(kSize, [&](int rank, Communicator world) {
        const auto replica = static_cast<std::size_t>(rank / kStages), stage = static_cast<std::size_t>(rank % kStages);
        Communicator pp = world.split(rank / kStages, rank), shards = world.split(rank % kStages, rank);
        Part part = replicas[replica][stage];
        or_abort({world, pp, shards}, "training step", [&] {
          FsdpOptions options;
          options.sharding = sharding;
          options.deterministic = true;
          FullyShardedDataParallel fsdp(*part, shards, options);
          Pipeline pipeline({make_stage(part)}, pp, schedule, token_loss());
          for (int step = 0; step < 2; ++step) {
            fsdp.zero_grad();
            const std::uint64_t before = fsdp.stats().reductions;
            {
              const auto silent = fsdp.no_sync();
              pipeline.run(references.batches[replica].inputs, references.batches[replica].targets,
                           {.total_weight = references.total / kReplicas});
            }
            EXPECT_EQ(fsdp.stats().reductions, before);
            fsdp.reduce_gradients();
          }
          const Tensors a = references.parts[0][stage]->parameters(), b = references.parts[1][stage]->parameters();
          for (std::size_t i = 0; i < a.size(); ++i) {
            if (!a[i].requires_grad()) continue;
            EXPECT_TRUE(same_bits(fsdp.full_gradient(i), (a[i].grad() + b[i].grad()) / 2)) << schedule.name << i;
          }
        });
      });
      ASSERT_EQ(errors, nothing(kSize)) << schedule.name;
    }
  }
}

struct TensorMode {
  int size;
  bool sequence_parallel;
};
void PrintTo(const TensorMode& mode, std::ostream* out) {
  *out << mode.size << (mode.sequence_parallel ? "Sequence" : "");
}
class TensorOnRanks : public ::testing::TestWithParam<TensorMode> {};

// Dropout inside and outside the regions: the second run of a block must draw the same numbers from both states.
TEST_P(TensorOnRanks, Claim22CheckpointingGivesTheSameBitsDropoutIncluded) {
  const TensorMode mode = GetParam();
  torch::manual_seed(3);
  const torch::Tensor tokens = torch::randint(kTokens, {2, 6}), targets = torch::randint(kTokens, {2, 6});
  std::vector<std::vector<Tensors>> results;  // without and with, by rank
  for (const int every : {0, 1, 2}) {
    Gpt whole = make_gpt(config_of(0.3));
    results.emplace_back(static_cast<std::size_t>(mode.size));
    const auto errors = on_ranks(mode.size, [&](int rank, Communicator comm) {
      TensorParallelGpt model(whole, comm,
                              TensorParallelOptions{.sequence_parallel = mode.sequence_parallel, .seed = 5});
      checkpoint_blocks(model, every);
      Tensors& mine = results.back()[static_cast<std::size_t>(rank)];
      for (int step = 0; step < 2; ++step) {
        const torch::Tensor loss = model->loss(tokens, targets);
        loss.backward();
        mine.push_back(loss.detach());
      }
      for (const torch::Tensor& parameter : model->parameters()) mine.push_back(parameter.grad());
    });
    ASSERT_EQ(errors, nothing(mode.size)) << every;
  }
  for (std::size_t rank = 0; rank < results[0].size(); ++rank) {
    for (std::size_t i = 0; i < results[0][rank].size(); ++i) {
      EXPECT_TRUE(same_bits(results[0][rank][i], results[1][rank][i])) << "rank " << rank << " tensor " << i;
      EXPECT_TRUE(same_bits(results[0][rank][i], results[2][rank][i])) << "rank " << rank << " tensor " << i;
    }
  }
}

// Two replicas of `size` ranks. In f64 as tensor_gpt_test.cc: 1e-12. Replicas are alike to the bit.
TEST_P(TensorOnRanks, UnderDistributedDataParallelTrainsAsOneProcess) {
  const TensorMode mode = GetParam();
  constexpr int kReplicas = 2;
  torch::manual_seed(3);
  const torch::Tensor tokens = torch::randint(kTokens, {kReplicas, 2, 6}),
                      targets = torch::randint(kTokens, {kReplicas, 2, 6});
  std::vector<Gpt> copies;
  for (int rank = 0; rank < kReplicas * mode.size; ++rank) copies.push_back(make_gpt(config_of(), torch::kFloat64));
  const auto errors = on_ranks(kReplicas * mode.size, [&](int rank, Communicator world) {
    const int replica = rank / mode.size;
    Communicator tp = world.split(replica, rank), dp = world.split(rank % mode.size, rank);
    or_abort({world, tp, dp}, "training step", [&] {
      TensorParallelGpt model(copies[static_cast<std::size_t>(rank)], tp,
                              TensorParallelOptions{.sequence_parallel = mode.sequence_parallel});
      DistributedDataParallel ddp(*model, dp);
      torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      for (int step = 0; step < 3; ++step) {
        ddp.zero_grad();
        model->loss(tokens[replica], targets[replica]).backward();
        optimizer.step();
      }
      ddp.check_equal();
      model->store(copies[static_cast<std::size_t>(rank)]);
    });
  });
  ASSERT_EQ(errors, nothing(kReplicas * mode.size));
  Gpt whole = make_gpt(config_of(), torch::kFloat64);
  torch::optim::SGD optimizer(whole->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    for (int replica = 0; replica < kReplicas; ++replica) {
      (whole->loss(tokens[replica], targets[replica].contiguous()) / kReplicas).backward();
    }
    optimizer.step();
  }
  for (const Gpt& copy : copies) {
    for (const auto& item : whole->named_parameters()) {
      const torch::Tensor mine = copy->named_parameters()[item.key()];
      EXPECT_LT((mine - item.value()).abs().max().item<double>(), 1e-12) << item.key();
      EXPECT_TRUE(same_bits(mine, copies[0]->named_parameters()[item.key()])) << item.key();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Combined, TensorOnRanks,
                         ::testing::Values(TensorMode{1, false}, TensorMode{2, false}, TensorMode{3, false},
                                           TensorMode{2, true}, TensorMode{3, true}),
                         ::testing::PrintToStringParamName());

// Without any backward under communication: gradients that lie in buckets, beside them, and none.
TEST(Combined, AverageGradientsTakesWhatTheGradientsHold) {
  const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
    torch::nn::Linear layer(2, 1);
    DistributedDataParallel ddp(*layer, comm);
    ddp.zero_grad();
    {
      const auto guard = ddp.no_sync();
      for (int pass = 0; pass < 2; ++pass) layer->forward(torch::full({1, 2}, rank + 1.0)).sum().backward();
    }
    if (rank == 1) layer->bias.mutable_grad() = torch::Tensor();
    ddp.average_gradients();
    EXPECT_TRUE(torch::equal(layer->weight.grad(), torch::full({1, 2}, 3.0)));  // (2 * 1 + 2 * 2) / 2
    EXPECT_TRUE(torch::equal(layer->bias.grad(), torch::full({1}, 1.0)));       // (2 + 0) / 2
    layer->weight.mutable_grad() = torch::full({1, 2}, rank * 4.0);             // an optimiser's own tensor
    ddp.average_gradients();
    EXPECT_TRUE(torch::equal(layer->weight.grad(), torch::full({1, 2}, 2.0)));
    EXPECT_EQ(ddp.stats().passes, 2u);
  });
  EXPECT_EQ(errors, nothing(2));
}

// A rank of one replica fails: the ranks that share a communicator with it, and those that share one with these, end.
TEST(Combined, ARankThatThrowsBringsTheWholeMeshDown) {
  std::barrier made(4);  // a rank that is still inside of split() when world is aborted throws there
  const auto errors = on_ranks(4, [&](int rank, Communicator world) {
    Communicator pp = world.split(rank / 2, rank), dp = world.split(rank % 2, rank);
    made.arrive_and_wait();
    or_abort({world, pp, dp}, "training step", [&] {
      if (rank == 3) throw std::runtime_error("out of data");
      double value = 1;
      dp.all_reduce(&value, &value, 1, DataType::f64);
      pp.all_reduce(&value, &value, 1, DataType::f64);
      world.barrier();
    });
  });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("rank 3: training step: out of data"), std::string::npos) << error;
}

}  // namespace
}  // namespace tutti::training::combined_test
