// The training of N ranks done by one process: what the ranks' results are compared with.
//
//   GptResult twin = train_twin(options, text, TwinOrder{});
//
// One backward pass for each data rank's rows, gradients added in rank order, then divided. For a pipeline the
//   micro-batches add up as Pipeline has it: sums of losses over the step's tokens, and the embedding's gradient and
//   the output layer's, which are added on two ranks, each on its own, then together.
// The same bits as the ranks, where their contracts promise bits (check.h says where). Tensor parallelism cuts sums in
//   two; its twin is the whole model, equal up to rounding.
// In this process alone, with as many torch threads as a rank has: MKL's bits depend on it.
#pragma once

#include "training/data/text.h"
#include "training/trainers/gpt_run.h"

namespace tutti::training {

/// The same mathematics, rounded elsewhere: samples of what rounding does.
struct TwinOrder {
  bool ranks_reversed = false;  // the data ranks' gradients are added in the opposite order
  bool rows_reversed = false;   // the rows of each batch are in the opposite order
  bool one_batch = false;       // all data ranks' rows in one large batch; each rank is noted with its loss
};

/// options.mesh.data_ranks() is what it stands for. Errors: invalid_argument: one_batch of a pipeline.
GptResult train_twin(const GptRunOptions& options, const ByteText& text, const TwinOrder& order);

}  // namespace tutti::training
