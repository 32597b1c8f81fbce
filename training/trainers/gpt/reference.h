// The single-process reference: the training of N ranks done by one process, which --check compares theirs with.
//
//   GptResult reference = train_reference(options, text, ReferenceOrder{});
//
// One backward pass for each data rank's rows, gradients added in rank order, then divided. For a pipeline the
//   micro-batches add up as Pipeline has it: sums of losses over the step's tokens, and the embedding's gradient and
//   the output layer's, which are added on two ranks, each on its own, then together.
// The same bits as the ranks, where their contracts promise bits (check.h says where). Tensor parallelism cuts sums in
//   two; the reference has the whole model, equal up to rounding.
// In this process alone, with as many torch threads as a rank has: MKL's bits depend on it.
#pragma once

#include "training/data/text.h"
#include "training/trainers/gpt/run.h"

namespace tutti::training {

/// An order of additions: other orders are the same mathematics, rounded elsewhere, and show what rounding does.
struct ReferenceOrder {
  bool ranks_reversed = false;  // the data ranks' gradients are added in the opposite order
  bool rows_reversed = false;   // the rows of each batch are in the opposite order
  bool one_batch = false;       // all data ranks' rows in one large batch; each rank is noted with its loss
};

/// options.mesh.data_ranks() is what it stands for. Errors: invalid_argument: one_batch of a pipeline.
GptResult train_reference(const GptRunOptions& options, const ByteText& text, const ReferenceOrder& order);

}  // namespace tutti::training
