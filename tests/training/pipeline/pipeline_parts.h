// Models and the one-process reference of the pipeline's tests.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/training/bits.h"
#include "training/pipeline/pipeline.h"

namespace tutti::training {

using Tensors = std::vector<torch::Tensor>;

constexpr int kTokens = 11, kTime = 5, kRows = 3;
constexpr std::int64_t kPadding = -100;

/// Another width at each boundary, layer norms, a residual, a parameter that is used twice, a frozen one, a scalar.
struct PartImpl : torch::nn::Module {
  PartImpl(int stage, int stages) : first(stage == 0), last(stage == stages - 1) {
    const int in = 8 + 3 * stage, out = last ? kTokens : in + 3;
    if (first) token = register_module("token", torch::nn::Embedding(kTokens, in));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({in})));
    twice = register_module("twice", torch::nn::Linear(in, in));
    hidden = register_module("hidden", torch::nn::Linear(in, 2 * in));
    up = register_module("up", torch::nn::Linear(in, out));
    frozen = register_parameter("frozen", torch::randn({out}), /*requires_grad=*/false);
    scale = register_parameter("scale", torch::rand({1}));
  }
  torch::Tensor forward(torch::Tensor x) {
    if (first) x = token->forward(x);
    x = x + torch::tanh(twice->forward(norm->forward(x)));
    x = torch::gelu(twice->forward(x)) * scale;
    const Tensors halves = hidden->forward(x).chunk(2, -1);
    return up->forward(halves[0] * torch::sigmoid(halves[1])) + frozen;
  }

  bool first, last;
  torch::nn::Embedding token = nullptr;
  torch::nn::LayerNorm norm = nullptr;
  torch::nn::Linear twice = nullptr, hidden = nullptr, up = nullptr;
  torch::Tensor frozen, scale;
};
TORCH_MODULE(Part);

inline std::vector<Part> make_parts(int stages, torch::ScalarType type = torch::kFloat32) {
  torch::manual_seed(5);
  std::vector<Part> parts;
  for (int stage = 0; stage < stages; ++stage) {
    parts.emplace_back(stage, stages);
    parts.back()->to(type);
  }
  return parts;
}

struct Batches {
  Tensors inputs, targets;
};

/// Micro-batches whose numbers of tokens that count differ.
inline Batches make_batches(int micro_batches, std::uint64_t seed = 9) {
  torch::manual_seed(seed);
  Batches batches;
  for (int i = 0; i < micro_batches; ++i) {
    batches.inputs.push_back(torch::randint(kTokens, {kRows, kTime}));
    batches.targets.push_back(torch::randint(kTokens, {kRows, kTime}));
    batches.targets.back().view(-1).slice(0, 0, (3 * i) % 7).fill_(kPadding);
  }
  return batches;
}

inline PipelineLoss token_loss() {
  PipelineLoss loss;
  loss.value = [](const torch::Tensor& y, const torch::Tensor& t) {
    return torch::cross_entropy_loss(y.reshape({-1, y.size(-1)}), t.view(-1), {}, at::Reduction::Sum, kPadding);
  };
  loss.weight = [](const torch::Tensor& t) { return t.ne(kPadding).sum().item<double>(); };
  return loss;
}

/// Runs the reference of a pipeline: one process, micro-batch after micro-batch. Adds to the gradients; returns the
/// loss.
template <class Forward>
double accumulate(const Batches& batches, const PipelineLoss& loss, Forward forward, double total = 0) {
  if (total == 0) {
    for (const torch::Tensor& target : batches.targets) total += loss.weight ? loss.weight(target) : 1;
  }
  double sum = 0;
  for (std::size_t i = 0; i < batches.inputs.size(); ++i) {
    const torch::Tensor value = loss.value(forward(batches.inputs[i]), batches.targets[i]).div(total);
    value.backward();
    sum += value.item<double>();
  }
  return sum;
}

inline double accumulate_parts(std::vector<Part>& parts, const Batches& batches, const PipelineLoss& loss,
                               double total = 0) {
  const auto forward = [&](torch::Tensor x) {
    for (Part& part : parts) x = part->forward(x);
    return x;
  };
  return accumulate(batches, loss, forward, total);
}

inline void expect_same_gradients(const torch::nn::Module& a, const torch::nn::Module& b, const std::string& where) {
  const auto mine = a.named_parameters(), theirs = b.named_parameters();
  ASSERT_EQ(mine.size(), theirs.size());
  for (std::size_t i = 0; i < mine.size(); ++i) {
    EXPECT_EQ(mine[i].value().grad().defined(), mine[i].value().requires_grad()) << where << " " << mine[i].key();
    EXPECT_TRUE(same_bits(mine[i].value().grad(), theirs[i].value().grad())) << where << " " << mine[i].key();
  }
}

/// Rank's stages of a model cut in schedule.stages parts.
inline std::vector<Stage> stages_of(std::vector<Part>& parts, const Schedule& schedule, int rank) {
  std::vector<Stage> stages;
  for (int s = rank; s < schedule.stages; s += schedule.ranks) {
    stages.push_back(make_stage(parts[static_cast<std::size_t>(s)]));
  }
  return stages;
}

}  // namespace tutti::training
