#include "training/pipeline/gpt_stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>

#include "tutti/tutti.hpp"

namespace tutti::training {

GptStageImpl::GptStageImpl(const GptParts& parts, std::size_t begin, std::size_t end)
    : first_block_(std::max<std::size_t>(begin, 1) - 1), embeds_(begin == 0), heads_(end == parts.blocks.size() + 2) {
  if (embeds_ || heads_) parts_.token = register_module("token", parts.token);
  if (embeds_) {
    parts_.position = register_module("position", parts.position);
    parts_.drop = register_module("drop", parts.drop);
  }
  for (std::size_t i = first_block_; i < std::min(end - 1, parts.blocks.size()); ++i) {
    parts_.blocks.push_back(register_module("block" + std::to_string(i), parts.blocks[i]));
  }
  if (heads_) parts_.norm = register_module("norm", parts.norm);
}

torch::Tensor GptStageImpl::forward(const torch::Tensor& x) {
  torch::Tensor y = embeds_ ? parts_.embed(x) : x;
  for (std::size_t i = 0; i < parts_.blocks.size(); ++i) {
    GptBlock& block = parts_.blocks[i];
    y = run_block_ ? run_block_(block, static_cast<int>(first_block_ + i), y) : block->forward(y);
  }
  return heads_ ? parts_.head(y) : y;
}

torch::Tensor GptStageImpl::token_weight() const {
  return parts_.token.is_empty() ? torch::Tensor() : parts_.token->weight;
}

GptStage gpt_stage(const Gpt& whole, const std::vector<std::size_t>& cuts, std::size_t stage) {
  const GptParts parts = whole->parts();
  const std::size_t layers = parts.blocks.size() + 2;
  const bool rising = std::adjacent_find(cuts.begin(), cuts.end(), std::greater_equal<>()) == cuts.end();
  if (cuts.size() < 2 || cuts.front() != 0 || cuts.back() != layers || !rising || stage + 1 >= cuts.size()) {
    throw Error(Code::invalid_argument,
                fmt::format("gpt_stage: stage {} of {} cuts; expected cuts that rise from 0 to {} layers, and a stage "
                            "between two of them",
                            stage, cuts.size(), layers));
  }
  return GptStage(parts, cuts[stage], cuts[stage + 1]);
}

std::vector<double> gpt_costs(const GptConfig& config) {
  const double width = config.width;
  std::vector<double> costs{width};                                                       // a look-up
  const double block = 12 * width * width + static_cast<double>(config.context) * width;  // mean of causal attention
  costs.insert(costs.end(), static_cast<std::size_t>(config.layers), block);
  costs.push_back(width * config.vocabulary);
  return costs;
}

PipelineLoss gpt_loss() {
  PipelineLoss loss;
  loss.value = [](const torch::Tensor& logits, const torch::Tensor& targets) {
    return torch::cross_entropy_loss(logits.view({-1, logits.size(-1)}), targets.reshape(-1), /*weight=*/{},
                                     at::Reduction::Sum, kIgnored);
  };
  loss.weight = [](const torch::Tensor& targets) { return targets.ne(kIgnored).sum().item<double>(); };
  return loss;
}

}  // namespace tutti::training
