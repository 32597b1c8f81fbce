// A GPT (models/gpt.h) cut into pipeline stages from outside.
//
//   Gpt whole(config);                                                    // same seed on every rank
//   std::vector<std::size_t> cuts = balanced_partition(gpt_costs(config), comm.size());
//   GptStage part = gpt_stage(whole, cuts, /*stage=*/comm.rank());        // shares whole's tensors
//   Pipeline pipeline({make_stage(part)}, comm, schedule, gpt_loss());
//   Communicator ends = comm.split(part->token_weight().defined() ? 0 : -1, comm.rank());
//   if (ends && comm.size() > 1) pipeline.tie(part->token_weight(), ends);
//
// Layers, as counted by `cuts`: the embedding, the blocks, the head (norm and output layer): config.layers + 2.
// The first and the last stage each hold the embedding's weights; on different ranks these are two tensors, to be tied.
// Names of parameters are those of the whole model ("block3.norm_mlp.weight"), so a stage's state is a part of its
// state.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "training/models/gpt.h"
#include "training/pipeline/stage.h"

namespace tutti::training {

class GptStageImpl : public torch::nn::Module {
 public:
  /// Layers [begin, end) of `parts`.
  GptStageImpl(const GptParts& parts, std::size_t begin, std::size_t end);
  /// Tokens [rows, time] i64 in the first stage, else [rows, time, width]; to the latter, in the last stage logits
  /// [rows, time, vocabulary].
  torch::Tensor forward(const torch::Tensor& x);
  /// The embedding's, on the first and the last stage; undefined on the others.
  torch::Tensor token_weight() const;
  /// Sets what runs a block in place of its forward, as in Gpt; `index` counts the blocks of the whole model.
  void set_block_runner(GptImpl::BlockRunner runner) { run_block_ = std::move(runner); }

 private:
  GptParts parts_;  // this stage's; the rest is null
  std::size_t first_block_;
  GptImpl::BlockRunner run_block_;
  bool embeds_, heads_;
};
TORCH_MODULE(GptStage);

/// Errors: invalid_argument (cuts that do not rise from 0 to layers + 2, no such stage).
GptStage gpt_stage(const Gpt& whole, const std::vector<std::size_t>& cuts, std::size_t stage);

/// Estimated arithmetic of each layer, embedding and head included, for balanced_partition; multiply-adds per token.
std::vector<double> gpt_costs(const GptConfig& config);

/// Cross entropy in nats, summed over the targets that are not kIgnored, and their number.
inline constexpr std::int64_t kIgnored = -100;
PipelineLoss gpt_loss();

}  // namespace tutti::training
