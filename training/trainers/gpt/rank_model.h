// The model of a rank that has all layers: the whole GPT, or its tensor parallel form; with activation checkpointing.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "training/clip.h"
#include "training/data/text.h"
#include "training/no_sync.h"
#include "training/precision/grad_scaler.h"
#include "training/tensors.h"
#include "training/trainers/gpt/options.h"
#include "training/trainers/gpt/recipe.h"
#include "training/trainers/gpt/strategy.h"

namespace tutti::training {

struct RankModel {
  std::shared_ptr<torch::nn::Module> module;
  std::function<torch::Tensor(const Batch&)> loss;  // mean, in the precision of the options
  std::function<void(Gpt)> store;                   // collective over the tp group
};
/// Collective over the tp group.
RankModel make_rank_model(const GptRunOptions& options, const Mesh& mesh);

/// Counts each parameter on one rank of the tp group: those that all hold whole on its rank 0. `names` of the module,
/// `tensors` in its order (the module's own, or shards of them).
ClippedParameters count_once(const torch::nn::Module& module, const std::vector<NamedTensor>& tensors,
                             const Mesh& mesh);

/// Returns the module's parameters, and the bytes of parameters and their gradients.
std::vector<torch::Tensor> parameters_in(const torch::nn::Module& module);
HeldBytes held_by(const std::vector<torch::Tensor>& parameters);

/// Runs forward and backward of a step's micro-batches under DDP or FSDP (`parallel`). Returns the mean loss.
template <class Parallel>
float backward_passes(Parallel& parallel, const RankModel& model, const GptRunOptions& options,
                      const std::function<Batch(int micro)>& rows, GradScaler& scaler) {
  parallel.zero_grad();
  std::vector<torch::Tensor> losses;
  for (int pass = 0; pass < options.passes(); ++pass) {
    std::optional<NoSync> guard;
    if (pass + 1 < options.passes() && !options.exchanges_every_pass()) guard.emplace(parallel.no_sync());
    const torch::Tensor mean = model.loss(rows(pass));
    (scaler.scale(mean) / options.passes()).backward();
    losses.push_back(mean.detach());
  }
  return mean_of(losses);
}

/// Returns what a tensor parallel group sends in a step for layers [begin, end): bytes by formula, and the calls.
double tensor_bytes_sent(const GptRunOptions& options, int begin, int end);
std::vector<RepeatedCall> tensor_communication(const GptRunOptions& options, const Mesh& mesh);

}  // namespace tutti::training
