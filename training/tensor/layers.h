// Tensor parallel layers, made from whole single-device ones.
//
//   ColumnParallelLinear in(whole_in, comm, {.name = "mlp_in"});     // rank r: the r-th slice of the outputs
//   RowParallelLinear out(whole_out, comm, {.name = "mlp_out"});     // rank r: the r-th slice of the inputs
//   y = out->forward(torch::gelu(in->forward(x)));                   // x and y the same on every rank
//   torch::Tensor weight = in->whole().weight;                       // the full parameter again
//
// Making one is collective: every rank gives a whole layer of the same sizes and takes its slice of rank 0's values
//   (type and requires_grad stay). whole() is collective too, and returns full parameters of their own memory on every
//   rank, with their gradients where there are any (then on every rank).
// Shapes: activations [..., width]. With sequence_parallel, dimension 0 is the sequence, and what lies between a row
//   parallel layer and the next column parallel one is this rank's part of it: [time / N, ...]. ParallelAttention
//   always takes [time, rows, width].
// Communication per forward: a column parallel layer none, a row parallel one an all-reduce; backward the other way
//   round. With sequence_parallel, an all-gather and a reduce-scatter in their places.
// Source: Shoeybi et al., "Megatron-LM", 2019, section 3; sequence_parallel: Korthikanti et al., "Reducing Activation
//   Recomputation in Large Transformer Models", 2022, section 4.2.2.
// Errors: tutti::Error that names rank, layer and sizes (not divisible by the ranks; indices out of range); the
//   communicator is aborted with it.
// Memory under sequence_parallel: backward gathers a column parallel layer's input again, so what is kept of it is 1/N
//   (gathered_linear.h); with `keep_gathered` it keeps the whole, and the bytes are those of the all-reduce form.
// Limits: dense CPU tensors.
// Threads: as tutti::Communicator.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>

#include "training/tensor/random.h"
#include "training/tensor/slices.h"
#include "tutti/tutti.hpp"

namespace tutti::training {

struct ParallelOptions {
  std::string name;  // who errors say it was; empty: the layer's type
  bool sequence_parallel = false;
  bool keep_gathered = false;  // under sequence_parallel: more memory, one all-gather less in backward
};

struct WholeParameters {
  torch::Tensor weight, bias;  // bias: undefined where the layer has none
};

/// y = x A^T + b with the rows of A, hence the outputs, cut over the ranks.
class ColumnParallelLinearImpl : public torch::nn::Module {
 public:
  /// `groups`: the outputs are so many products in one, each to be cut by itself (q, k, v: 3).
  ColumnParallelLinearImpl(const torch::nn::Linear& whole, Communicator comm, const ParallelOptions& options = {},
                           std::int64_t groups = 1);
  /// [..., in] to [..., out / N]: with groups, the slices of the groups one behind the other.
  torch::Tensor forward(const torch::Tensor& x);
  WholeParameters whole() const;

  torch::Tensor weight, bias;  // [out / N, in], [out / N] or undefined

 private:
  Communicator comm_;
  ParallelOptions options_;
  Cut cut_;
};
TORCH_MODULE(ColumnParallelLinear);

/// y = x A^T + b with the columns of A, hence the inputs, cut over the ranks. The bias is whole on every rank, and
/// added once, to the sum.
class RowParallelLinearImpl : public torch::nn::Module {
 public:
  RowParallelLinearImpl(const torch::nn::Linear& whole, Communicator comm, const ParallelOptions& options = {});
  /// [..., in / N] to [..., out].
  torch::Tensor forward(const torch::Tensor& x);
  /// Runs it with another bias (which may be undefined): one that went through sum_gradients() with others.
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& other_bias);
  WholeParameters whole() const;

  torch::Tensor weight, bias;  // [out, in / N], [out] or undefined

 private:
  Communicator comm_;
  ParallelOptions options_;
};
TORCH_MODULE(RowParallelLinear);

/// An embedding whose rows, the vocabulary, are cut over the ranks. Indices i64 [time, ...] to [time, ..., width], or
/// to [time / N, ..., width] with sequence_parallel. A vocabulary that the ranks do not divide is padded: each rank has
/// ceil(vocabulary / N) rows, those past the vocabulary (on the last ranks) are zero and no part of whole().
class VocabularyParallelEmbeddingImpl : public torch::nn::Module {
 public:
  VocabularyParallelEmbeddingImpl(const torch::nn::Embedding& whole, Communicator comm,
                                  const ParallelOptions& options = {});
  torch::Tensor forward(const torch::Tensor& indices);
  WholeParameters whole() const;

  torch::Tensor weight;  // [ceil(vocabulary / N), width]

 private:
  Communicator comm_;
  ParallelOptions options_;
  Cut cut_;
};
TORCH_MODULE(VocabularyParallelEmbedding);

struct AttentionOptions {
  ParallelOptions parallel;
  double dropout = 0;  // of attention's weights, in training
  bool causal = true;
};

/// Self-attention with the heads cut over the ranks. `query_key_value` gives q, k and v one behind the other.
class ParallelAttentionImpl : public torch::nn::Module {
 public:
  /// `random` may be null without dropout.
  ParallelAttentionImpl(const torch::nn::Linear& query_key_value, const torch::nn::Linear& out, int heads,
                        Communicator comm, const AttentionOptions& options = {},
                        std::shared_ptr<RandomStates> random = nullptr);
  /// [time, rows, width] to the same; with sequence_parallel [time / N, rows, width] to the same.
  torch::Tensor forward(const torch::Tensor& x);
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& out_bias);  // see RowParallelLinear

  ColumnParallelLinear query_key_value = nullptr;
  RowParallelLinear out = nullptr;

 private:
  torch::Tensor attend(const torch::Tensor& x);

  AttentionOptions options_;
  std::int64_t heads_;  // of this rank
  std::shared_ptr<RandomStates> random_;
};
TORCH_MODULE(ParallelAttention);

/// out(gelu(in(x))) with the hidden activations cut over the ranks.
class ParallelMlpImpl : public torch::nn::Module {
 public:
  ParallelMlpImpl(const torch::nn::Linear& in, const torch::nn::Linear& out, Communicator comm,
                  const ParallelOptions& options = {});
  torch::Tensor forward(const torch::Tensor& x);
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& out_bias);  // see RowParallelLinear

  ColumnParallelLinear in = nullptr;
  RowParallelLinear out = nullptr;
};
TORCH_MODULE(ParallelMlp);

}  // namespace tutti::training
