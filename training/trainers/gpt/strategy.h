// One way to spread a GPT's training over a mesh of ranks.
//
//   std::unique_ptr<Strategy> strategy = make_strategy(options, mesh);
//   torch::optim::AdamW optimizer = make_optimizer(strategy->trained());
//   for (...) {
//     float loss = strategy->backward(step_rows, scaler);    // gradients are the mean over all data ranks' rows
//     clip_grad_norm(strategy->clipped(), {mesh.fsdp(), mesh.tp(), mesh.pp()}, 1.0);
//     optimizer.step();
//   }
//   strategy->store(whole);
//
// strategy_replicated.cc: DDP, and tensor parallelism under it.
// strategy_sharded.cc: ZeRO 1 to 3, hybrid sharding, and tensor parallelism under them.
// strategy_pipeline.cc: pipelines, of tensor parallel stages too, and DDP over them.
// Parallelism is applied in this order: tensor, pipeline, checkpointing, sharding or DDP.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "training/clip.h"
#include "training/data/text.h"
#include "training/mesh/mesh.h"
#include "training/pipeline/simulator.h"
#include "training/precision/grad_scaler.h"
#include "training/tensors.h"
#include "training/trainers/expected_cost.h"
#include "training/trainers/gpt/options.h"

namespace tutti::training {

/// Collectives that a step makes, to be made once more with nothing else going on.
struct RepeatedCall {
  enum class Kind : std::uint8_t { all_reduce, all_gather, reduce_scatter };
  Kind kind = Kind::all_reduce;
  Communicator comm;
  double bytes = 0;        // of the whole
  double times = 1;        // per step
  bool overlapped = true;  // with computation; else the step stands still meanwhile
};

/// Bytes that this rank holds, the optimiser's aside.
struct HeldBytes {
  std::size_t parameters = 0, gradients = 0;
  std::size_t gathered = 0;  // at most, of whole parameters beside the shards
  std::size_t padding = 0;   // in `parameters`
};

/// The cost of this rank and a step by formula.
struct ExpectedCost {
  StateBytes state;
  double bytes_sent = 0;
};

/// The measurements of a pipeline's last run.
struct PipelineMeasure {
  Schedule schedule;                               // no ranks' actions: there is no pipeline
  Timeline measured, simulated;                    // simulated with each stage's measured cost
  std::vector<int> measured_live, simulated_live;  // micro-batches that each rank held at the most
  bool exists() const { return !schedule.actions.empty(); }
};

class Strategy {
 public:
  virtual ~Strategy() = default;

  /// Collective. Sets gradients to zero, and runs forward and backward over a step's micro-batches, rows(0) to
  /// rows(passes - 1). Returns the mean loss over this data rank's rows.
  virtual float backward(const std::function<Batch(int micro)>& rows, GradScaler& scaler) = 0;

  /// Returns the tensors that the optimiser steps on.
  virtual std::vector<torch::Tensor> trained() const = 0;
  virtual ClippedParameters clipped() const = 0;
  /// Collective. This training's parameters into a whole model, on every rank.
  virtual void store(Gpt whole) = 0;

  /// Seconds since the start that this rank did nothing but wait for communication, as far as that is known.
  virtual double wait_seconds() const { return 0; }
  /// Bytes sent since the start for forward and backward.
  virtual std::uint64_t bytes_sent() const = 0;
  virtual HeldBytes held() const = 0;
  virtual ExpectedCost expected_cost() const = 0;
  virtual std::vector<RepeatedCall> communication() const = 0;
  /// Collective over the pipeline, if there is one.
  virtual PipelineMeasure pipeline() const { return {}; }
  /// Collective. Throws when ranks that should hold the same do not.
  virtual void check_equal() {}
};

/// Collective. REQUIRES: check_options() has passed.
std::unique_ptr<Strategy> make_strategy(const GptRunOptions& options, const Mesh& mesh);

std::unique_ptr<Strategy> make_replicated(const GptRunOptions& options, const Mesh& mesh);
std::unique_ptr<Strategy> make_sharded(const GptRunOptions& options, const Mesh& mesh);
std::unique_ptr<Strategy> make_pipeline(const GptRunOptions& options, const Mesh& mesh);

}  // namespace tutti::training
