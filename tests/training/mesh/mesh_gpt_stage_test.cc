// Pipelines of tensor parallel stages: the reference is the whole GPT in one process, in f64, where no logic error can
// hide behind rounding.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "tests/training/on_ranks.h"
#include "training/checkpointing/checkpoint_blocks.h"
#include "training/clip.h"
#include "training/mesh/gpt_tensor_stage.h"
#include "training/mesh/mesh.h"
#include "training/pipeline/gpt_stages.h"
#include "training/pipeline/partition.h"
#include "training/pipeline/pipeline.h"
#include "training/tensors.h"

namespace tutti::training::mesh_gpt_stage_test {
namespace {

using Tensors = std::vector<torch::Tensor>;

constexpr int kRows = 2, kMicroBatches = 4;
constexpr std::uint64_t kSeed = 9;

GptConfig small_config() {
  GptConfig config;
  config.layers = 4;
  config.heads = 4;
  config.width = 16;
  config.context = 8;
  config.vocabulary = 21;  // odd: padded
  return config;
}

Gpt make_gpt() {
  torch::manual_seed(kSeed);
  Gpt gpt(small_config());
  gpt->to(torch::kFloat64);
  const torch::NoGradGuard no_grad;  // biases and norms are born as zeros and ones, which would hide mistakes
  for (torch::Tensor& parameter : gpt->parameters()) parameter += 0.1 * torch::randn_like(parameter);
  return gpt;
}

struct Batches {
  Tensors inputs, targets;
};
Batches make_batches() {
  torch::manual_seed(kSeed + 1);
  Batches batches;
  for (int i = 0; i < kMicroBatches; ++i) {
    batches.inputs.push_back(torch::randint(small_config().vocabulary, {kRows, small_config().context}, torch::kInt64));
    batches.targets.push_back(
        torch::randint(small_config().vocabulary, {kRows, small_config().context}, torch::kInt64));
  }
  return batches;
}

struct Way {
  MeshShape shape;
  std::string schedule;
  bool sequence_parallel;
  int checkpoint_every;
};
void PrintTo(const Way& way, std::ostream* out) {
  std::string name = to_text(way.shape);
  std::erase_if(name, [](char c) { return c == '=' || c == ','; });
  std::string schedule = way.schedule;
  std::erase(schedule, '-');
  *out << name << "_" << schedule << (way.sequence_parallel ? "_sequence" : "")
       << (way.checkpoint_every > 0 ? "_checkpointed" : "");
}

class StagesOnAMesh : public ::testing::TestWithParam<Way> {};

// One step of SGD, clipped, and back into a whole model. Values are near 1 and each is a sum of some thousand products:
// 4000 * 2^-53 = 4e-13.
TEST_P(StagesOnAMesh, TrainAsOneProcess) {
  constexpr double kTolerance = 1e-12, kLargest = 0.5, kRate = 0.1;
  const Way& way = GetParam();
  const Batches batches = make_batches();
  torch::set_num_threads(1);

  Gpt reference = make_gpt();
  double loss = 0;
  const double tokens = kMicroBatches * kRows * small_config().context;
  for (int i = 0; i < kMicroBatches; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const torch::Tensor part = gpt_loss().value(reference->forward(batches.inputs[at]), batches.targets[at]) / tokens;
    part.backward();
    loss += part.item<double>();
  }
  const double norm = clip_grad_norm({reference->parameters(), {}}, {}, kLargest);
  ASSERT_GT(norm, kLargest);
  torch::optim::SGD(reference->parameters(), kRate).step();

  std::vector<Gpt> wholes;
  for (int rank = 0; rank < way.shape.ranks(); ++rank) wholes.push_back(make_gpt());
  std::vector<double> losses(wholes.size()), norms(wholes.size());
  const auto errors = on_ranks(way.shape.ranks(), [&](int rank, Communicator comm) {
    const auto r = static_cast<std::size_t>(rank);
    const Mesh mesh(comm, way.shape);
    const auto cuts = balanced_partition(gpt_costs(small_config()), way.shape.pp);
    const auto s = static_cast<std::size_t>(mesh.place().pp);
    TensorParallelGptStage part(wholes[r], mesh.tp(), cuts[s], cuts[s + 1],
                                TensorParallelOptions{.sequence_parallel = way.sequence_parallel});
    checkpoint_blocks(part, way.checkpoint_every);
    Pipeline pipeline({make_stage(part)}, mesh.pp(), make_schedule(way.schedule, way.shape.pp, kMicroBatches),
                      tensor_parallel_gpt_loss(small_config(), mesh.tp()));
    const torch::Tensor token = part->token_weight();
    Communicator ends = mesh.pp().split(token.defined() ? 0 : -1, mesh.pp().rank());
    if (token.defined() && way.shape.pp > 1) pipeline.tie(token, ends);
    losses[r] = pipeline.run(batches.inputs, batches.targets).loss;

    const std::vector<std::string> shared = replicated_parameters(*part);
    ClippedParameters clipped;
    for (const NamedTensor& item : parameters_of(*part)) {
      const bool of_another_slice = mesh.place().tp > 0 && std::count(shared.begin(), shared.end(), item.name) > 0;
      const bool of_another_stage = mesh.place().pp > 0 && item.tensor.is_same(token);
      (of_another_slice || of_another_stage ? clipped.copies : clipped.own).push_back(item.tensor);
    }
    norms[r] = clip_grad_norm(clipped, {mesh.tp(), mesh.pp()}, kLargest);
    torch::optim::SGD(part->parameters(), kRate).step();
    part->store(wholes[r]);
  });
  ASSERT_EQ(errors, nothing(way.shape.ranks())) << "seed " << kSeed;

  EXPECT_THAT(losses, ::testing::Each(::testing::DoubleNear(loss, kTolerance)));
  EXPECT_THAT(norms, ::testing::Each(::testing::DoubleNear(norm, kTolerance)));
  // Each rank's whole model has that rank's stage of the trained one, and the rest as it was.
  const Gpt before = make_gpt();
  std::map<std::string, int> trained;
  for (Gpt& whole : wholes) {
    for (const auto& item : whole->named_parameters()) {
      if (torch::equal(item.value(), before->named_parameters()[item.key()])) continue;
      ++trained[item.key()];
      EXPECT_LT((item.value() - reference->named_parameters()[item.key()]).abs().max().item<double>(), kTolerance)
          << item.key();
    }
  }
  EXPECT_EQ(trained.size(), reference->named_parameters().size());
}

INSTANTIATE_TEST_SUITE_P(Mesh, StagesOnAMesh,
                         ::testing::Values(Way{{1, 1, 1, 1}, "1f1b", false, 0}, Way{{1, 1, 2, 1}, "1f1b", false, 0},
                                           Way{{1, 1, 1, 2}, "1f1b", false, 0}, Way{{1, 1, 2, 2}, "1f1b", false, 0},
                                           Way{{1, 1, 2, 2}, "gpipe", true, 0}, Way{{1, 1, 2, 2}, "zb-h1", false, 1},
                                           Way{{1, 1, 2, 2}, "zb-h1", true, 2}, Way{{1, 1, 4, 2}, "1f1b", true, 0},
                                           Way{{1, 1, 2, 4}, "zb-h1", false, 0}),
                         ::testing::PrintToStringParamName());

TEST(TensorParallelGptStage, RefusesLayersThatAreNoStage) {
  Gpt whole = make_gpt();
  const auto errors = on_ranks(2, [&](int, Communicator comm) { TensorParallelGptStage(whole, comm, 3, 7); });
  EXPECT_THAT(errors,
              ::testing::Each(::testing::HasSubstr("layers 3 to 7 cannot be a stage; expected a part of 0 to 6")));
}

TEST(WholeParameters, AreThoseThatTensorParallelismDoesNotCut) {
  Gpt whole = make_gpt();
  std::vector<std::string> names;
  const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
    const TensorParallelGptStage stage(whole, comm, 0, 2);
    if (rank == 0) names = replicated_parameters(*stage);
  });
  EXPECT_EQ(errors, nothing(2));
  EXPECT_THAT(names,
              ::testing::UnorderedElementsAre("position", "block0.norm_attention_weight", "block0.norm_attention_bias",
                                              "block0.norm_mlp_weight", "block0.norm_mlp_bias",
                                              "block0.attention.out.bias", "block0.mlp.out.bias"));
  EXPECT_EQ(replicated_parameters(*whole).size(), whole->parameters().size());
}

}  // namespace
}  // namespace tutti::training::mesh_gpt_stage_test
