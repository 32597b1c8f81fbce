#include "training/trainers/gpt/recipe.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

namespace tutti::training {
namespace {

constexpr double kFinalShare = 0.1;   // of the learning rate, where the cosine ends
constexpr double kWeightDecay = 0.1;  // of matrices; biases and norms have none

}  // namespace

Gpt make_gpt(const GptRunOptions& options) {
  torch::manual_seed(options.seed);
  return Gpt(options.model);
}

torch::optim::AdamW make_optimizer(const std::vector<torch::Tensor>& trained) {
  std::vector<torch::Tensor> matrices, others;
  for (const torch::Tensor& parameter : trained) {
    if (parameter.requires_grad()) (parameter.dim() >= 2 ? matrices : others).push_back(parameter);
  }
  const auto with_decay = [](double decay) {
    return std::make_unique<torch::optim::AdamWOptions>(
        torch::optim::AdamWOptions().betas({0.9, 0.99}).weight_decay(decay));
  };
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(matrices, with_decay(kWeightDecay));
  groups.emplace_back(others, with_decay(0));
  return torch::optim::AdamW(std::move(groups), torch::optim::AdamWOptions());
}

double learning_rate_at(const GptRunOptions& options, int step) {
  const int warm_up = std::min(100, options.steps / 10);
  if (step < warm_up) return options.learning_rate * (step + 1) / (warm_up + 1);
  const double done = static_cast<double>(step - warm_up) / std::max(1, options.steps - warm_up);
  return options.learning_rate * (kFinalShare + (1 - kFinalShare) * 0.5 * (1 + std::cos(M_PI * done)));
}

void set_learning_rate(torch::optim::Optimizer& optimizer, double rate) {
  for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) group.options().set_lr(rate);
}

float mean_of(const std::vector<torch::Tensor>& losses) {
  double sum = 0;
  for (const torch::Tensor& loss : losses) sum += loss.item<float>();
  return static_cast<float>(sum / static_cast<double>(losses.size()));
}

Batch rows_of(const GptRunOptions& options, const BatchSampler& sampler, int step, int micro, int data_rank) {
  const int first = (micro * options.mesh.data_ranks() + data_rank) * options.batch;
  const Batch rows = sampler.batch(static_cast<std::uint64_t>(step), static_cast<std::uint64_t>(first), options.batch);
  return {rows.input.to(options.device), rows.target.to(options.device)};
}

}  // namespace tutti::training
