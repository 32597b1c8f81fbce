// What a run of train_gpt is made of.
#pragma once

#include <cstdint>
#include <string>

#include "training/fsdp/fsdp.h"
#include "training/mesh/mesh.h"
#include "training/models/gpt.h"
#include "training/trainers/precision.h"

namespace tutti::training {

/// When the gradients of accumulated micro-batches are exchanged.
enum class Exchange : std::uint8_t {
  automatic,   // as the next two: in each where gradients are sharded (zero2, fsdp), else in the last
  last,        // in the last micro-batch: fewer bytes; whole gradients on every rank
  every_pass,  // in each micro-batch
};

struct GptRunOptions {
  GptConfig model;
  int steps = 200;
  int batch = 12;      // rows per data rank and micro-batch
  int accumulate = 1;  // micro-batches per step; with a pipeline, runs per step
  double learning_rate = 1e-3;
  double clip = 1.0;  // norm of the whole gradient; 0: no clipping
  std::uint64_t seed = 1337;
  bool deterministic = false;
  MeshShape mesh;
  Sharding sharding = Sharding::zero3;  // over mesh.fsdp
  bool offload = false;  // with zero3: shards stay in host memory, the way of FsdpOptions::compute_device
  Exchange exchange = Exchange::automatic;
  Precision precision = Precision::fp32;
  torch::Device device = torch::kCPU;  // of tensors; with `offload` of what is computed with
  int checkpoint_every = 0;            // activation checkpointing: of block 0, N, 2N, ...; 0: none
  bool sequence_parallel = false;      // of tensor parallelism
  std::string schedule = "1f1b";       // of a pipeline, as are the next two
  int micro_batches = 4;               // per run
  int stages_per_rank = 1;             // 2 or more: with "interleaved" only

  bool pipelined() const { return mesh.pp > 1; }
  /// Backward passes that one step accumulates.
  int passes() const { return pipelined() ? accumulate * micro_batches : accumulate; }
  bool exchanges_every_pass() const {
    return exchange == Exchange::every_pass ||
           (exchange == Exchange::automatic && mesh.fsdp > 1 && sharding != Sharding::zero1);
  }
};

/// Errors: tutti::Error, invalid_argument, in one sentence: options that do not go together.
void check_options(const GptRunOptions& options);

}  // namespace tutti::training
