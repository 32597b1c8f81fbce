#include "training/trainers/vision/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace tutti::training {

void VisionOptimizer::step() {
  for (torch::optim::OptimizerParamGroup& group : optimizer_.param_groups()) group.options().set_lr(learning_rate());
  scaler_.step(optimizer_);
  scaler_.update();
  ++step_;
}

Stage make_trained_model(const VisionRunOptions& options, const VisionData& data) {
  Stage model = make_vision_model(options.model, data);
  model.module->to(options.device);
  return model;
}

double pass_over(const VisionRunOptions& options, const Stage& model, const ImageBatch& rows, double weight,
                 const std::function<void(const torch::Tensor& part, bool last)>& backward) {
  const std::int64_t total = rows.input.size(0);
  std::vector<std::pair<double, torch::Tensor>> losses;  // of micro-batches, with their shares of the rows
  for (std::int64_t begin = 0; begin < total; begin += options.batch) {
    const std::int64_t end = std::min(begin + options.batch, total);
    const double share = static_cast<double>(end - begin) / static_cast<double>(total);
    const torch::Tensor input = rows.input.slice(0, begin, end).to(options.device);
    torch::Tensor loss;
    {
      const PrecisionGuard guard(options.precision, options.device);
      loss = torch::cross_entropy_loss(model.forward(input), rows.target.slice(0, begin, end).to(options.device));
    }
    backward(loss * (weight * share), end == total);
    losses.emplace_back(share, loss.detach());
  }
  double mean = 0;
  for (const auto& [share, loss] : losses) mean += share * loss.item<double>();
  return mean;
}

std::vector<torch::Tensor> state_of(const torch::nn::Module& module) {
  std::vector<torch::Tensor> copies;
  const auto copy = [&](const torch::Tensor& tensor) { copies.push_back(tensor.detach().cpu().clone()); };
  for (const torch::Tensor& parameter : module.parameters()) copy(parameter);
  for (const torch::Tensor& buffer : module.buffers()) copy(buffer);
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
  if (options.accumulate > 1) {
    throw Error(
        Code::invalid_argument,
        fmt::format("train_vision: --accumulate {}: a pipeline's micro-batches add up; expected --micro-batches",
                    options.accumulate));
  }
  if (options.precision == Precision::fp16) {
    throw Error(Code::invalid_argument,
                "train_vision: --precision fp16: a pipeline's loss is not scaled; expected bf16 or fp32");
  }
}

int steps_of(const VisionRunOptions& options, const VisionData& data, int shares) {
  return options.epochs * VisionLoader(data, loader_options(options, shares, 0, 0)).steps();
}

}  // namespace tutti::training
