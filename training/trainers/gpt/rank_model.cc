#include "training/trainers/gpt/rank_model.h"

#include <algorithm>
#include <cstddef>
#include <unordered_set>
#include <utility>

#include "training/checkpointing/checkpoint_blocks.h"
#include "training/mesh/gpt_tensor_stage.h"
#include "training/tensor/gpt_tensor.h"
#include "training/trainers/gpt/recipe.h"

namespace tutti::training {
namespace {

/// Blocks among layers [begin, end) that are checkpointed.
int recomputed_blocks(const GptRunOptions& options, int begin, int end) {
  if (options.checkpoint_every == 0) return 0;
  int count = 0;
  for (int block = std::max(begin, 1) - 1; block < std::min(end - 1, options.model.layers); ++block) {
    if (block % options.checkpoint_every == 0) ++count;
  }
  return count;
}

}  // namespace

RankModel make_rank_model(const GptRunOptions& options, const Mesh& mesh) {
  Gpt whole = make_gpt(options);
  if (!options.offload) whole->to(options.device);
  RankModel result;
  const auto finish = [&](auto model) {
    checkpoint_blocks(model, options.checkpoint_every);
    result.module = model.ptr();
    result.loss = [model, precision = options.precision, device = options.device](const Batch& batch) mutable {
      const PrecisionGuard guard(precision, device);
      return model->loss(batch.input, batch.target);
    };
  };
  if (mesh.shape().tp == 1) {
    finish(whole);
    result.store = [whole](Gpt to) {
      const torch::NoGradGuard no_grad;
      const std::vector<torch::Tensor> from = whole->parameters(), into = to->parameters();
      for (std::size_t i = 0; i < from.size(); ++i) into[i].copy_(from[i]);
    };
    return result;
  }
  TensorParallelOptions tensor;
  tensor.sequence_parallel = options.sequence_parallel;
  tensor.seed = options.seed;
  TensorParallelGpt model(whole, mesh.tp(), tensor);
  finish(model);
  result.store = [model](Gpt to) { model->store(to); };
  return result;
}

ClippedParameters count_once(const torch::nn::Module& module, const std::vector<NamedTensor>& tensors,
                             const Mesh& mesh) {
  std::unordered_set<std::string> copies;
  if (mesh.place().tp != 0) {
    for (std::string& name : replicated_parameters(module)) copies.insert(std::move(name));
  }
  ClippedParameters result;
  for (const NamedTensor& item : tensors) {
    if (!item.tensor.requires_grad()) continue;
    (copies.contains(item.name) ? result.copies : result.own).push_back(item.tensor);
  }
  return result;
}

std::vector<torch::Tensor> parameters_in(const torch::nn::Module& module) {
  std::vector<torch::Tensor> result;
  for (const NamedTensor& item : parameters_of(module)) result.push_back(item.tensor);
  return result;
}

HeldBytes held_by(const std::vector<torch::Tensor>& parameters) {
  HeldBytes held;
  for (const torch::Tensor& parameter : parameters) {
    held.parameters += parameter.nbytes();
    if (parameter.grad().defined()) held.gradients += parameter.grad().nbytes();
  }
  return held;
}

double tensor_bytes_sent(const GptRunOptions& options, int begin, int end) {
  if (options.mesh.tp == 1) return 0;
  TensorParallelStep step;
  step.begin = begin;
  step.end = end;
  step.rows = options.batch;
  step.ranks = options.mesh.tp;
  step.forward_bytes = options.precision == Precision::fp32 ? 4 : 2;
  step.recomputed = recomputed_blocks(options, begin, end);
  step.sequence_parallel = options.sequence_parallel;
  return options.passes() * tensor_parallel_bytes(options.model, step);
}

std::vector<RepeatedCall> tensor_communication(const GptRunOptions& options, const Mesh& mesh) {
  if (options.mesh.tp == 1) return {};
  const double bytes = 4.0 * options.batch * options.model.context * options.model.width;
  const double calls = 4.0 * options.model.layers + 2 + 2.0 * recomputed_blocks(options, 0, options.model.layers + 2);
  return {{RepeatedCall::Kind::all_reduce, mesh.tp(), bytes, calls * options.passes(), /*overlapped=*/false}};
}

}  // namespace tutti::training
