#include "training/trainers/vision_parts.h"

#include <fmt/format.h>

namespace tutti::training {

void VisionOptimizer::step() {
  for (torch::optim::OptimizerParamGroup& group : optimizer_.param_groups()) group.options().set_lr(learning_rate());
  optimizer_.step();
  ++step_;
}

std::vector<torch::Tensor> state_of(const torch::nn::Module& module) {
  std::vector<torch::Tensor> copies;
  for (const torch::Tensor& parameter : module.parameters()) copies.push_back(parameter.detach().clone());
  for (const torch::Tensor& buffer : module.buffers()) copies.push_back(buffer.clone());
  return copies;
}

double weight_of(const VisionRows& rows, std::size_t share) {
  return static_cast<double>(rows.counts[share]) * static_cast<double>(rows.counts.size()) /
         static_cast<double>(rows.total);
}

PipelineLoss summed_loss() {
  PipelineLoss loss;
  loss.value = [](const torch::Tensor& logits, const torch::Tensor& labels) {
    return torch::cross_entropy_loss(logits, labels, /*weight=*/{}, at::Reduction::Sum);
  };
  loss.weight = [](const torch::Tensor& labels) { return static_cast<double>(labels.size(0)); };
  return loss;
}

void check_pipeline(const VisionRunOptions& options) {
  if (options.model.model != "vit") {
    throw Error(Code::invalid_argument,
                fmt::format("train_vision: --model {} is no list of layers; with --parallel pipeline expected vit",
                            options.model.model));
  }
  if (options.end == EpochEnd::uneven) {
    throw Error(Code::invalid_argument,
                "train_vision: --end uneven: all micro-batches of a step have one size; expected drop or pad");
  }
}

int steps_of(const VisionRunOptions& options, const VisionData& data, int shares) {
  return options.epochs * VisionFeed(data, feed_options(options, shares, 0, 0)).steps();
}

}  // namespace tutti::training
