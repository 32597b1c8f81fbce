// Cross entropy of logits whose vocabulary is cut over the ranks. The logits are never gathered.
//
//   torch::Tensor logits = torch::linear(copy_to_region(x, comm), my_rows);                 // [..., vocabulary / N]
//   torch::Tensor loss = vocabulary_parallel_cross_entropy(logits, targets, comm);          // one number, on all ranks
//
// How: each rank takes its largest logit, its sum of exponentials below that, and its target's logit (0 when another
//   rank has it); one all-gather of these three numbers per token; every rank puts them together in rank order, so that
//   all have the same bits. Backward is local: softmax minus one hot. After Shoeybi et al., "Megatron-LM", 2019,
//   section 3, which takes three all-reduces for it.
// Shapes: logits [..., vocabulary / N], targets [...] i64, the same on every rank; rank r has entries from
//   r * vocabulary / N on. Types: f32, f64, bf16, f16; sums are formed in f32 (f64 for f64), which is the loss's type.
// Bytes: 3 numbers per token to each other rank. Kept for backward: the logits, as they are.
// The loss is one number, not a sum over ranks: each rank calls backward on it.
// Errors: tutti::Error that names rank and sizes, or the target that is no entry of the vocabulary; the communicator is
//   aborted with it.
// Limits: dense CPU tensors; no gradients of gradients. Threads: as tutti::Communicator.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <optional>

#include "tutti/tutti.hpp"

namespace tutti::training {

struct CrossEntropyOptions {
  std::int64_t ignore_index = -100;  // targets that count neither in the sum nor in the mean
  /// The sum is divided by it; without it, by the number of targets that are not ignored. Give the count over all ranks
  /// of a data parallel step here, where those differ.
  std::optional<double> divisor;
  /// Entries from here on are padding: they have no share in the softmax, and no gradient. 0: none are.
  std::int64_t vocabulary = 0;
};

/// The mean in nats per token. Without any token that counts: not a number, as in torch.
torch::Tensor vocabulary_parallel_cross_entropy(const torch::Tensor& logits, const torch::Tensor& targets,
                                                const Communicator& comm, const CrossEntropyOptions& options = {});

}  // namespace tutti::training
