// What train_gpt runs: a GPT trained by N ranks with DDP, and the same training done by one process (the twin).
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "training/data/text.h"
#include "training/ddp/ddp.h"
#include "training/models/gpt.h"
#include "tutti/tutti.hpp"

namespace tutti::training {

struct GptRunOptions {
  GptConfig model;
  int steps = 200;
  int batch = 12;      // rows per rank and micro-batch
  int accumulate = 1;  // micro-batches per step
  double learning_rate = 1e-3;
  double clip = 1.0;  // norm of the whole gradient; 0: no clipping
  std::uint64_t seed = 1337;
  DdpOptions ddp;
};

struct GptStep {
  int step = 0;
  double loss = 0;  // mean over the ranks, nats per token
  double learning_rate = 0;
  double gradient_norm = 0;
  double seconds = 0;
  double wait_seconds = 0;  // of rank 0, in backward, for communication alone
};

struct GptResult {
  int ranks = 1;
  std::vector<float> losses;  // [step * ranks + rank]: the loss of that rank's rows
  std::vector<torch::Tensor> parameters;
  /// Mean over the ranks, added in rank order.
  double loss(int step) const;
};

/// Collective. Every rank gets all losses. `report` is called on rank 0, for every step, some steps late.
GptResult train_with_ddp(const GptRunOptions& options, const ByteText& text, Communicator comm,
                         const std::function<void(const GptStep&)>& report);

/// How the twin adds what the ranks added between them.
enum class Twin {
  shards,           // one backward pass per rank, gradients added in rank order, then divided: the same bits
  shards_reversed,  // the same sum in the opposite order
  batch,            // all ranks' rows in one large batch; only one loss per micro-batch, noted for each rank alike
  batch_reversed,   // the same rows in the opposite order
};

/// In this process alone, with as many torch threads as a rank has: MKL's bits depend on it.
GptResult train_twin(const GptRunOptions& options, const ByteText& text, int ranks, Twin twin);

/// Mean loss over fixed rows of the validation text.
double validation_loss(const GptRunOptions& options, const ByteText& text,
                       const std::vector<torch::Tensor>& parameters);

}  // namespace tutti::training
