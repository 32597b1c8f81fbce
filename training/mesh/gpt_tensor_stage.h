// A stage of a pipeline whose layers are tensor parallel: of a GPT (models/gpt.h), from outside.
//
//   Gpt whole(config);                                                     // same seed on every rank
//   auto cuts = balanced_partition(gpt_costs(config), mesh.shape().pp);
//   TensorParallelGptStage part(whole, mesh.tp(), cuts[s], cuts[s + 1]);
//   Pipeline pipeline({make_stage(part)}, mesh.pp(), schedule, tensor_parallel_gpt_loss(config, mesh.tp()));
//   if (part->token_weight().defined()) pipeline.tie(part->token_weight(), ends_of_the_pipeline);
//
// Layers are counted as in pipeline/gpt_stages.h; what is cut, communicated and promised: tensor/gpt_tensor.h.
// Order: every rank of the tp group has the same stages and the same schedule, so their collectives have one order.
// Shapes: the first stage takes tokens [rows, time] i64; stages hand on [time, rows, width] (with sequence_parallel
//   [time / N, rows, width]); the last one gives logits [time, rows, ceil(vocabulary / N)].
// Errors: tutti::Error; the tp communicator is aborted with it, and Pipeline aborts its own.
// Threads: as tutti::Communicator; backward counts as use.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "training/models/gpt.h"
#include "training/pipeline/stage.h"
#include "training/tensor/gpt_tensor.h"
#include "tutti/tutti.hpp"

namespace tutti::training {

class TensorParallelGptStageImpl : public torch::nn::Module {
 public:
  /// Collective over `comm`. Layers [begin, end). Shares nothing with `whole`.
  TensorParallelGptStageImpl(Gpt whole, Communicator comm, std::size_t begin, std::size_t end,
                             const TensorParallelOptions& options = {});
  torch::Tensor forward(const torch::Tensor& x);
  /// This rank's rows of the embedding, on the first and the last stage; undefined on the others.
  torch::Tensor token_weight() const;
  /// Collective over the tp group. This stage's parameters into a model of the same config.
  void store(Gpt whole) const;
  /// Sets what runs a block in place of its forward, as in TensorParallelGpt; `index` counts the blocks of the whole
  /// model.
  void set_block_runner(TensorParallelGptImpl::BlockRunner runner) { run_block_ = std::move(runner); }
  RandomStates& random() { return *random_; }

 private:
  torch::Tensor embed(const torch::Tensor& tokens);
  torch::Tensor head(const torch::Tensor& x);

  GptConfig config_;
  TensorParallelOptions options_;
  Communicator comm_;
  std::shared_ptr<RandomStates> random_;
  int first_block_;
  bool embeds_, heads_;
  VocabularyParallelEmbedding token_ = nullptr;
  torch::Tensor position_;
  std::vector<TensorParallelGptBlock> blocks_;
  SharedNorm norm_;
  TensorParallelGptImpl::BlockRunner run_block_;
  RegionSteps steps_;
};
TORCH_MODULE(TensorParallelGptStage);

/// Returns the last stage's loss: cross entropy summed over the targets [rows, time], and their number; as gpt_loss().
PipelineLoss tensor_parallel_gpt_loss(const GptConfig& config, Communicator comm);

/// Names of the parameters that every rank of a tp group holds whole, in any module made of the layers of
/// tensor/layers.h: layer norms, positions, biases behind a reduction, and all that is no such layer. Clipping counts
/// them once (mesh/clip.h).
std::vector<std::string> replicated_parameters(const torch::nn::Module& module);

}  // namespace tutti::training
