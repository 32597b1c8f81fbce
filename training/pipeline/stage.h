// One stage of a pipeline, and the loss behind the last one.
//
//   Stage first = make_stage(torch::nn::Linear(8, 16));   // any module whose forward takes and gives one tensor
//   Stage head{head_module, [=](const torch::Tensor& x) { return head_module->logits(x.tanh()); }};
//   PipelineLoss loss{[](const torch::Tensor& y, const torch::Tensor& t) { return torch::mse_loss(y, t); }};
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <utility>

namespace tutti::training {

/// A part of the model: an ordinary module that knows nothing of ranks.
/// forward: any tensor in the first stage, in the others what the stage before gave, on the device of the module's
///   parameters; out comes a dense tensor of f32, f64, f16 or bf16 of at most 8 dimensions, with the same shape for
///   each micro-batch. (The last stage's output goes to the loss only and may be anything.) It must not change its
///   input in place.
struct Stage {
  std::shared_ptr<torch::nn::Module> module;
  std::function<torch::Tensor(const torch::Tensor&)> forward;
};

template <class Impl>
Stage make_stage(const torch::nn::ModuleHolder<Impl>& module) {
  return {module.ptr(), [impl = module.ptr()](const torch::Tensor& x) { return impl->forward(x); }};
}

/// The loss of the last stage's output. A run minimises sum(value) / sum(weight) over its micro-batches.
struct PipelineLoss {
  /// A scalar for a micro-batch's output and target: the sum of the losses of all that counts, its tokens for example.
  std::function<torch::Tensor(const torch::Tensor& output, const torch::Tensor& target)> value;
  /// How much counts in it, e.g. the number of tokens that are not padding. Empty: 1 for each micro-batch; then `value`
  /// is its mean, and the run's loss the mean of the means.
  std::function<double(const torch::Tensor& target)> weight;
};

}  // namespace tutti::training
