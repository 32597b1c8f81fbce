// What train_gpt runs: a GPT trained by a mesh of ranks.
//
//   GptRunOptions options;
//   options.mesh = parse_mesh("fsdp=2,tp=2", comm.size());
//   GptResult result = train_gpt(options, text, comm, [&](const StepMetrics& step) { progress.show(step); });
//
// A Strategy (strategy.h) trains. reference.h is the same training in one process, and check.h compares the two.
// Rows: data rank d (mesh.h) takes rows (m D + d) B to (m D + d + 1) B - 1 of micro-batch m, of D data ranks and B rows
//   each. Ranks of a tp group and of a pipeline share their data rank's rows.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "training/data/text.h"
#include "training/fsdp/fsdp.h"
#include "training/mesh/mesh.h"
#include "training/models/gpt.h"
#include "training/trainers/gpt/strategy.h"
#include "training/trainers/progress.h"
#include "tutti/tutti.hpp"

namespace tutti::training {

struct GptResult {
  int data_ranks = 1;
  std::vector<float> losses;              // [step * data_ranks + data rank]: mean over that one's rows
  std::vector<torch::Tensor> parameters;  // of the whole model
  std::string report;                     // measured beside expected cost (report.h)
  PipelineMeasure pipeline;               // of rank 0's pipeline
  /// Mean over the data ranks, added in their order.
  double loss(int step) const;
};

/// Collective. Every rank gets all losses. `report` is called on rank 0, for every step, some steps late.
/// Errors: tutti::Error, invalid_argument among them for options that do not go together (strategy.h).
GptResult train_gpt(const GptRunOptions& options, const ByteText& text, Communicator comm,
                    const std::function<void(const StepMetrics&)>& report);

/// Mean loss over fixed rows of the validation text.
double validation_loss(const GptRunOptions& options, const ByteText& text,
                       const std::vector<torch::Tensor>& parameters);

}  // namespace tutti::training
