// What train_vision runs: an image classifier trained by N ranks, and the single-process reference of that training.
//
//   const VisionResult run = train_vision_ddp(options, data, comm, report);
//   const VisionResult reference = ddp_reference(options, data, comm.size());
//   std::string difference = first_difference(run, reference);     // empty: the same bits
//
// Optimiser: AdamW, its learning rate falling along a line to nothing at the end of the run.
// A step has shares (loader.h): one for each rank with DDP and FSDP, one for each micro-batch with a pipeline.
// EpochEnd: with `uneven`, ranks of DDP whose share of an epoch's last step is empty follow by Join, and the gradient
//   is the mean over all samples there are. With `pad`, repeated samples count as the others do.
// Errors: tutti::Error; a rank that throws in the middle of a run leaves the others waiting, so call it under
// or_abort().
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "training/data/sampler.h"
#include "training/ddp/ddp.h"
#include "training/trainers/precision.h"
#include "training/trainers/progress.h"
#include "training/trainers/vision/data.h"
#include "training/trainers/vision/model.h"
#include "tutti/tutti.hpp"

namespace tutti::training {

struct VisionRunOptions {
  VisionModelOptions model;
  int epochs = 3;
  int batch = 32;      // rows of a share, or of each of its micro-batches
  int accumulate = 1;  // micro-batches of a share; a pipeline has its own
  Precision precision = Precision::fp32;
  torch::Device device = torch::kCPU;
  double learning_rate = 3e-3;
  EpochEnd end = EpochEnd::uneven;
  DdpOptions ddp;                 // with FSDP `deterministic` counts alone
  std::string schedule = "1f1b";  // of a pipeline, as are the next two
  int micro_batches = 4;
  int stages_per_rank = 1;  // more than 1 with "interleaved" only
};

struct VisionResult {
  int losses_per_step = 1;
  std::vector<double> losses;        // of each rank's rows, step by step (0: no rows). Pipeline: of each step
  std::vector<torch::Tensor> state;  // parameters, then buffers, of the whole model
  double bytes_sent = 0;             // by this rank, in forward and backward, mean over the steps; of a pipeline: 0
  std::string cost;                  // a line about cost, measured and expected; rank 0's
};

/// Called on rank 0 for each step: with DDP and FSDP at the end of an epoch, with a pipeline at once. What a pipeline's
/// rank waits for is the others: its bubble is in wait_seconds.
using VisionReport = std::function<void(const StepMetrics&)>;

/// Steps of the whole run, whose steps have that many shares. Errors: too few images.
int steps_of(const VisionRunOptions& options, const VisionData& data, int shares);

/// Collective. Every rank gets the result.
VisionResult train_vision_ddp(const VisionRunOptions& options, const VisionData& data, Communicator comm,
                              const VisionReport& report);
/// Collective. Every rank gets the result, with its own buffers. Errors also: EpochEnd::uneven, as a rank without rows
/// cannot follow the others.
VisionResult train_vision_fsdp(const VisionRunOptions& options, const VisionData& data, Communicator comm,
                               const VisionReport& report);
/// Collective. Every rank gets the result. Errors also: EpochEnd::uneven, as micro-batches must be alike.
VisionResult train_vision_pipeline(const VisionRunOptions& options, const VisionData& data, Communicator comm,
                                   const VisionReport& report);

/// Each rank's gradients in turn, added in rank order and divided; of the buffers those that the first rank's rows
/// make, which is what DDP gives all ranks. Equal to the bit for 1 and 2 ranks, and for more if
/// options.ddp.deterministic.
VisionResult ddp_reference(const VisionRunOptions& options, const VisionData& data, int ranks);
/// Accumulation over the micro-batches. Equal to the bit.
VisionResult pipeline_reference(const VisionRunOptions& options, const VisionData& data);

/// A sentence; empty when losses and state are the same bits.
std::string first_difference(const VisionResult& run, const VisionResult& reference);

/// Share of the test images that a model with this state, in evaluation mode, labels right.
double test_accuracy(const VisionRunOptions& options, const VisionData& data, const std::vector<torch::Tensor>& state);

}  // namespace tutti::training
