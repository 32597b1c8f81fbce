// What a training step costs by formula: bytes that a rank sends, bytes that it holds, and the share of time that a
// pipeline is idle. Pure functions; a trainer prints them beside what it counted.
//
//   all_reduce_bytes(4 * P, n);   // of DDP: 2 (n-1)/n S
//
// Units: bytes, of one rank and one step, unless said. Elements are of f32 where nothing else is said.
// Sources: ring all-reduce: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
//   2009. ZeRO: Rajbhandari et al., SC 2020, section 5 and figure 1. Bubbles: see pipeline/schedule.h.
// An algorithm that needs fewer rounds may send more than the bandwidth-optimal number given here.
#pragma once

#include <cstdint>
#include <string_view>

#include "training/models/gpt.h"

namespace tutti::training {

// Bytes sent by each of n ranks when `bytes` is the size of the whole; a mean over the ranks where they differ.
double all_reduce_bytes(double bytes, int ranks);      // 2 (n-1)/n S
double all_gather_bytes(double bytes, int ranks);      // (n-1)/n S
double reduce_scatter_bytes(double bytes, int ranks);  // (n-1)/n S

/// The state that is cut over the ranks of data parallelism.
enum class ShardedState : std::uint8_t {
  none,        // DDP
  optimizer,   // zero1
  gradients,   // zero2: and the optimiser's
  parameters,  // zero3: and all else
};

/// A step of P parameters over n ranks, for the bytes sent for gradients and parameters. `unresharded`: elements that
/// stay whole between forward and backward (with zero3, the root unit and the last one of forward). `reductions`: how
/// often the gradients are exchanged in a step, `passes`: forward and backward passes in a step (for zero3, which
/// gathers in each).
struct DataParallelStep {
  ShardedState sharded = ShardedState::none;
  double elements = 0;
  double unresharded = 0;
  int ranks = 1;
  int passes = 1;
  int reductions = 1;
};
double data_parallel_bytes(const DataParallelStep& step);
/// Returns the bytes of the comparison of the ranks' steps: 8 (n-1) for each exchange of DDP (ddp/step_check.h), 32
/// (n-1) for each step where something is sharded (fsdp/step_exchange.h).
double step_check_bytes(const DataParallelStep& step);

/// Bytes that a rank holds after a step.
struct StateBytes {
  double parameters = 0, gradients = 0, optimizer = 0;
  double total() const { return parameters + gradients + optimizer; }
};
/// Adam on f32: 4 + 4 + 8 bytes for each element, each part cut over `ranks` or not. Without padding.
StateBytes adam_state(ShardedState sharded, double elements, int ranks);

/// Trained parameters of a Gpt (with biases) by part.
struct GptElements {
  double token = 0, position = 0, final_norm = 0;
  double block_cut = 0, block_whole = 0;  // of each block: what tensor parallelism cuts, and what it does not
  double block() const { return block_cut + block_whole; }
};
GptElements gpt_elements(const GptConfig& config);
/// Elements that each of `tensor_ranks` holds of layers [begin, end) of layers + 2 (pipeline/gpt_stages.h).
double gpt_stage_elements(const GptConfig& config, int begin, int end, int tensor_ranks);

/// One micro-batch of `rows` rows through layers [begin, end) of a tensor parallel GPT: four all-reduces per block (two
/// forward, two backward), one forward behind the embedding, one backward before the output layer, and three f32
/// numbers per token and rank for the loss. `forward_bytes`: of an element of a block's activations (2 under autocast;
/// backward sends f32). `recomputed`: blocks whose two forward all-reduces are made once more.
/// Comparing the ranks' passes takes 8 (n-1) bytes more (tensor/region_steps.h).
/// `sequence_parallel`: all-gathers and reduce-scatters of the same bytes take their places (in backward of the
/// forward's type). Backward gathers inputs that were not kept: two more per block, one before the output layer. It
/// also sums the gradients of all that every rank holds whole.
struct TensorParallelStep {
  int begin = 0, end = 0, rows = 1, ranks = 1;
  int forward_bytes = 4;
  int recomputed = 0;
  bool sequence_parallel = false;
};
double tensor_parallel_bytes(const GptConfig& config, const TensorParallelStep& step);

/// The share of an ideal pipeline's time in which a rank is idle, of the total: forward and backward take the same on
/// all stages, B = 2 F (and F = I = W for zb-h1), sends take none. p ranks, m micro-batches, v stages per rank. Holds
/// for m >= p. `schedule` as make_schedule() has it.
double pipeline_bubble(std::string_view schedule, int p, int m, int v = 1);

}  // namespace tutti::training
