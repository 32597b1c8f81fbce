// The GPT of models/gpt.h, tensor parallel: made from outside from a whole one.
//
//   Gpt whole(config);                                                       // on every rank; rank 0's weights count
//   TensorParallelGpt model(whole, comm, TensorParallelOptions{.sequence_parallel = true});
//   torch::optim::AdamW optimizer(model->parameters());                      // of this rank's slices
//   model->loss(tokens, targets).backward();                                 // the same batch on every rank
//   model->store(whole);                                                     // collective: the weights back
//
// What is cut: heads, hidden units of the mlp, and the vocabulary of embedding and output layer, whose weights stay one
//   parameter. Heads and 4 * width must be divisible by the ranks; the vocabulary is padded with zeros. Layer norms,
//   positions and the biases behind a reduction are whole on every rank, with the same gradients and so the same values
//   (to the bit).
// Communication per block: 2 all-reduces forward, 2 backward. With sequence_parallel 2 all-gathers and 2
//   reduce-scatters each way, which move the same bytes, and what lies between is cut by the sequence (1/N of the
//   activations); the time must be divisible by the ranks then. Backward has 2 all-gathers more, of inputs that it did
//   not keep (keep_gathered: none more, but they stay whole). Parameters outside the regions are used on a part of
//   the sequence only, so their gradients are summed: one small all-reduce (6 * width elements) per block backward,
//   and one for positions and the last layer norm.
// Dropout: heads draw by rank; what all ranks hold is dropped alike (by rank under sequence_parallel): random.h.
// Checkpointing: checkpoint_blocks(model, every); a block's collectives of forward then run once more in backward.
// Result: loss and gradients equal the whole model's but for rounding (sums in another order); without dropout, that
// is. Source: Shoeybi et al., "Megatron-LM", 2019; Korthikanti et al., "Reducing Activation Recomputation in Large
//   Transformer Models", 2022.
// Steps: each forward begins with a comparison of its number and of the parameters' form (region_steps.h). So a rank
//   that leaves a region out is found, and one that freezes, converts, reshapes or ties a parameter alone. All ranks
//   may make such changes between steps. Hooks of parameters that every rank holds whole must be the same on all.
// Errors: tutti::Error that names rank, layer and sizes; the communicator is aborted with it. Any other exception in
//   forward() and loss() brings the other ranks down, too; put backward under or_abort() (training/abort.h) for the
//   same.
// Threads: as tutti::Communicator; backward counts as use. Ownership: shares nothing with the whole model, which may
//   go.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "training/models/gpt.h"
#include "training/tensor/layers.h"
#include "training/tensor/random.h"
#include "training/tensor/region_steps.h"
#include "tutti/tutti.hpp"

namespace tutti::training {

struct TensorParallelOptions {
  bool sequence_parallel = false;
  bool keep_gathered = false;  // layers.h
  std::uint64_t seed = 0;      // of dropout; the same on every rank
};

/// A layer norm that every rank holds whole.
struct SharedNorm {
  torch::Tensor weight, bias;
  torch::Tensor operator()(const torch::Tensor& x, const torch::Tensor& own_weight,
                           const torch::Tensor& own_bias) const;
  double eps = 1e-5;
};

/// [time, rows, width] to the same; with sequence_parallel [time / N, rows, width] to the same.
class TensorParallelGptBlockImpl : public torch::nn::Module {
 public:
  /// `name`: of the block in `whole`.
  TensorParallelGptBlockImpl(torch::nn::Module& whole, const std::string& name, const GptConfig& config,
                             Communicator comm, const TensorParallelOptions& options,
                             std::shared_ptr<RandomStates> random);
  torch::Tensor forward(torch::Tensor x);
  void store(torch::nn::Module& whole) const;

 private:
  std::string name_;
  double dropout_;
  bool sequence_parallel_;
  Communicator comm_;
  std::shared_ptr<RandomStates> random_;
  SharedNorm norm_attention_, norm_mlp_;
  ParallelAttention attention_ = nullptr;
  ParallelMlp mlp_ = nullptr;
};
TORCH_MODULE(TensorParallelGptBlock);

class TensorParallelGptImpl : public torch::nn::Module {
 public:
  /// Collective.
  TensorParallelGptImpl(Gpt whole, Communicator comm, const TensorParallelOptions& options = {});
  /// Tokens [rows, time <= context] i64, the same on every rank, to this rank's part of the logits:
  /// [rows, time, ceil(vocabulary / N)], zero past the vocabulary.
  torch::Tensor forward(const torch::Tensor& tokens);
  /// Mean cross entropy in nats per token: one number, the same on every rank.
  torch::Tensor loss(const torch::Tensor& tokens, const torch::Tensor& targets);
  /// Collective. Parameters, and gradients where there are any, into a model of the same config, on every rank.
  void store(Gpt whole) const;
  const GptConfig& config() const { return config_; }
  std::vector<TensorParallelGptBlock>& blocks() { return blocks_; }
  RandomStates& random() { return *random_; }
  /// How forward runs its blocks, as Gpt has it; empty: it calls them.
  using BlockRunner = std::function<torch::Tensor(TensorParallelGptBlock& block, int index, const torch::Tensor& x)>;
  void set_block_runner(BlockRunner runner) { run_block_ = std::move(runner); }

 private:
  torch::Tensor logits(const torch::Tensor& tokens);  // [time, rows, ceil(vocabulary / N)]

  GptConfig config_;
  TensorParallelOptions options_;
  Communicator comm_;
  std::shared_ptr<RandomStates> random_;
  VocabularyParallelEmbedding token_ = nullptr;
  torch::Tensor position_;
  std::vector<TensorParallelGptBlock> blocks_;
  BlockRunner run_block_;
  SharedNorm norm_;
  RegionSteps steps_;
};
TORCH_MODULE(TensorParallelGpt);

}  // namespace tutti::training
