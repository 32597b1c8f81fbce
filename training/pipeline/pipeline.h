// Trains a model that is cut into stages, each on its own rank: this rank's part of one run over m micro-batches.
//
//   Schedule schedule = one_forward_one_backward(comm.size(), /*micro_batches=*/8);
//   Pipeline pipeline({make_stage(part)}, comm, schedule, {cross_entropy_sum, count_tokens});
//   torch::optim::AdamW optimizer(part->parameters());
//   for (std::int64_t step = 0; step < steps; ++step) {
//     optimizer.zero_grad();
//     // Adds to the gradients, as 8 backward passes would.
//     double loss = pipeline.run(x.tensor_split(8), y.tensor_split(8), {.step = step}).loss;
//     optimizer.step();
//   }
//
// Gradients: those of accumulation over the micro-batches in one process, d/dw of sum(value_i / sum(weight)), bit for
//   bit with every schedule of schedule.h, since each adds them in the order of the micro-batches. Two things have no
//   order in common with one process and are equal up to rounding only: tied parameters, and a schedule of your own
//   that runs a stage's backwards in another order.
// Schedule: simulated before anything runs (simulator.h), and compared by hash over the ranks.
// Shapes: the first activation from each stage to the next carries its type and shape; all later ones must have them
//   too, in later runs as well, until forget_shapes(). So the last batch of an epoch, when it is smaller, either has a
//   multiple of m rows, with forget_shapes() on all ranks before and behind its run, or is left out (EpochEnd::drop of
//   sampler.h).
// Split backward (I and W): see split_backward.h for what is split. On the first stage nothing waits for I, so I does
//   nothing there and W is a whole backward.
// Random numbers: dropout draws from torch's generator in the order of this rank's list, not of one process.
// Overlap: sends and receives run on the communicator's thread while this one calculates.
// Data parallelism as well: run() calls backward several times, so the gradients are averaged behind it:
//   DistributedDataParallel ddp(*part, mesh.dp());
//   { const auto guard = ddp.no_sync(); pipeline.run(x, y, {.total_weight = tokens_of_all / mesh.dp().size()}); }
//   ddp.average_gradients();                   // FullyShardedDataParallel: fsdp.no_sync(), fsdp.reduce_gradients()
// Activation checkpointing: part of a stage's forward (checkpoint_blocks); with every schedule one more forward.
// Memory: the schedule's live activations, the receive buffers of as many, and with split backward each stage's graph
//   until its W.
// Changes between runs: this holds no parameters but the tied ones, so what a stage is changed to is what runs. An
//   output of another type or shape needs forget_shapes(). Tied parameters stay in their stages, and are of one form
//   on all sharers, or the next run says so on all ranks.
// Threads: as tutti::Communicator. The communicator must not be used for anything else during run().
// Errors: tutti::Error. When a stage or the loss throws, or a shape changes, the communicator and those of tie() are
//   aborted with a sentence that names rank, action and reason; all ranks fail with it and none hangs. After that the
//   object cannot run again. No action may take longer than the communicator's timeout, as the next rank waits for it.
// Limits: CPU tensors; one tensor from stage to stage, which arrives contiguous whatever its strides were.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "training/pipeline/schedule.h"
#include "training/pipeline/simulator.h"
#include "training/pipeline/stage.h"
#include "tutti/tutti.hpp"

namespace tutti::training {

struct PipelineRun {
  double loss = 0;                    // sum(value) / sum(weight), the same on every rank
  double weight = 0;                  // sum(weight), the same on every rank
  int peak_live = 0;                  // most activations that this rank held; as Simulation::peak_live
  std::vector<TimedAction> measured;  // this rank's calculations; seconds on std::chrono::steady_clock
};

struct PipelineRunOptions {
  /// Divides the sum of the values in place of the run's own sum of weights, > 0: what all data-parallel replicas count
  /// together, for gradients that are then added over them (divided by their number, for gradients that are averaged).
  /// Read on the last stage's rank. 0: own.
  double total_weight = 0;
  /// The caller's count of steps. A rank that left a run out would pair its next batch with the others' last one: with
  /// another number on one rank the run ends with a mismatch on all, before an optimiser can use the gradients.
  std::int64_t step = 0;
};

class Pipeline {
 public:
  /// Collective. `stages`: this rank's, by number: stages rank, rank + p, ... of the model. `loss` is used on the last
  /// stage's rank and may be empty elsewhere.
  /// Errors: invalid_argument (a wrong schedule, another schedule on another rank, stages or loss missing).
  Pipeline(std::vector<Stage> stages, Communicator communicator, Schedule schedule, PipelineLoss loss = {});
  ~Pipeline();
  Pipeline(Pipeline&&) noexcept;
  Pipeline& operator=(Pipeline&&) noexcept;

  /// Collective over the ranks of `sharers`, whose stages all hold this parameter (same shape, type and
  /// requires_grad): gives them its rank 0's value, and after each run sums what the run added to the gradient over
  /// them, in rank order. The optimizers of all sharers must be alike, then the copies stay equal. A frozen parameter
  /// gets no gradient. On a rank that holds both stages give both the same tensor, and tie it once.
  void tie(torch::Tensor parameter, Communicator sharers);

  /// Collective. `micro_batches`: the first stage's inputs, used on its rank only; `targets`: on the last stage's rank
  /// only. As many as the schedule has; elsewhere they may be empty. A schedule without backward runs without autograd.
  PipelineRun run(const std::vector<torch::Tensor>& micro_batches, const std::vector<torch::Tensor>& targets,
                  const PipelineRunOptions& options = {});

  /// Call it on all ranks, between runs: the next run agrees on shapes anew.
  void forget_shapes();

  const Schedule& schedule() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tutti::training
