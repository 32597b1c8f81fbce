// Activation checkpointing: a part of the model runs forward without keeping its activations, and runs again in
// backward, just before they are needed. Memory of activations for the time of one more forward of that part.
//
//   y = checkpoint(*block, [block](const torch::Tensor& x) mutable { return block->forward(x); }, x);
//
// `module`: whose trained parameters the function may use; the smallest such, for a gradient is complete only when all
//   checkpoints that name its parameter are through. `function`: kept until backward has gone through, so it must
//   own or outlive what it captures; gets the inputs, gives one tensor or several, and computes the same each time.
//   Inputs may be of any type, need no gradient, or be undefined. Whatever else it computes with (numbers, tensors
//   without gradient) it may capture; a tensor with gradient must be an input or a parameter of the module.
// Kept from forward to backward: inputs, outputs that others keep, about 5 KB of random state for each device.
// Bits: gradients equal those of function(inputs) without checkpoint. The random state is set back for the second run
//   (dropout drops the same) and put back after it; autocast is as it was; buffers of the module are changed once
//   (running statistics). Only a tensor with three uses or more, some inside and some outside, may get the sum of
//   its gradients in another order; and under autocast a weight used inside and outside gets a sum of f32 gradients,
//   where one cached cast would have summed short ones.
// Gradient hooks: a parameter's hooks run once, with the pass that was called, when its part is through; so
//   DistributedDataParallel works over it, and overlaps. retain_graph works and runs the function again.
// Nesting: a function may call checkpoint. Segments: n equal layers in sqrt(n) checkpoints of sqrt(n) layers keep about
//   2 sqrt(n) activations.
// Without gradients (NoGradGuard, or nothing trained) the function is just called.
// Ranks as threads of one process share LibTorch's default random generators: one rank's second run would disturb the
//   others' draws. There, draw from generators of your own and set default_generators = false. `check_outputs` finds
//   such mistakes.
// Errors: tutti::Error (invalid_argument) in backward: the second run gave other outputs (number, shape, type; all
//   bytes with check_outputs); it used a tensor with gradient that is neither input nor parameter; create_graph. Inputs
//   or parameters changed in place before backward give LibTorch's own error.
// Limits: the function must not change inputs in place, and sees the module's train() or eval() of then. No second
//   derivatives.
// Source: Chen et al., "Training Deep Nets with Sublinear Memory Cost", arXiv 1604.06174, section 4.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <vector>

namespace tutti::training {

struct CheckpointOptions {
  bool default_generators = true;           // of the CPU, and of the devices of inputs and parameters
  std::vector<at::Generator> generators{};  // others that the function draws from
  bool check_outputs = false;               // a hash of all output bytes; for a test run
};

using CheckpointFunction = std::function<torch::Tensor(const torch::Tensor&)>;
using CheckpointListFunction = std::function<std::vector<torch::Tensor>(const std::vector<torch::Tensor>&)>;

torch::Tensor checkpoint(const torch::nn::Module& module, const CheckpointFunction& function,
                         const torch::Tensor& input, const CheckpointOptions& options = {});
/// Undefined tensors may be among inputs; outputs are all defined.
std::vector<torch::Tensor> checkpoint(const torch::nn::Module& module, const CheckpointListFunction& function,
                                      const std::vector<torch::Tensor>& inputs, const CheckpointOptions& options = {});

}  // namespace tutti::training
