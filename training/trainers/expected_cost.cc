#include "training/trainers/expected_cost.h"

#include <algorithm>

namespace tutti::training {
namespace {

constexpr double kF32 = 4;

double cut(double bytes, bool is_cut, int ranks) { return is_cut ? bytes / ranks : bytes; }

}  // namespace

double all_reduce_bytes(double bytes, int ranks) { return 2 * bytes * (ranks - 1) / ranks; }
double all_gather_bytes(double bytes, int ranks) { return bytes * (ranks - 1) / ranks; }
double reduce_scatter_bytes(double bytes, int ranks) { return bytes * (ranks - 1) / ranks; }

double step_check_bytes(const DataParallelStep& step) {
  return (step.sharded == ShardedState::none ? step.reductions * 8.0 : 32.0) * (step.ranks - 1);
}

double data_parallel_bytes(const DataParallelStep& step) {
  const double all = kF32 * step.elements;
  const double reduce = step.reductions * reduce_scatter_bytes(all, step.ranks);
  switch (step.sharded) {
    case ShardedState::none: return step.reductions * all_reduce_bytes(all, step.ranks);
    case ShardedState::optimizer:
    case ShardedState::gradients: return reduce + all_gather_bytes(all, step.ranks);
    case ShardedState::parameters: break;
  }
  return reduce + step.passes * all_gather_bytes(2 * all - kF32 * step.unresharded, step.ranks);
}

StateBytes adam_state(ShardedState sharded, double elements, int ranks) {
  return {cut(4 * elements, sharded >= ShardedState::parameters, ranks),
          cut(4 * elements, sharded >= ShardedState::gradients, ranks),
          cut(8 * elements, sharded >= ShardedState::optimizer, ranks)};
}

GptElements gpt_elements(const GptConfig& config) {
  const double width = config.width, bias = config.bias ? 1 : 0;
  GptElements elements;
  elements.token = config.vocabulary * width;
  elements.position = config.context * width;
  elements.final_norm = (1 + bias) * width;
  elements.block_cut = 12 * width * width + bias * 7 * width;  // q, k, v: 3; attention's output: 1; mlp: 4 + 4
  elements.block_whole = 2 * (1 + bias) * width + bias * 2 * width;
  return elements;
}

double gpt_stage_elements(const GptConfig& config, int begin, int end, int tensor_ranks) {
  const GptElements elements = gpt_elements(config);
  const bool embeds = begin == 0, heads = end == config.layers + 2;
  const int blocks = std::min(end - 1, config.layers) - (std::max(begin, 1) - 1);
  double sum = blocks * (elements.block_cut / tensor_ranks + elements.block_whole);
  if (embeds || heads) sum += elements.token / tensor_ranks;
  if (embeds) sum += elements.position;
  if (heads) sum += elements.final_norm;
  return sum;
}

double tensor_parallel_bytes(const GptConfig& config, const TensorParallelStep& step) {
  const double tokens = static_cast<double>(step.rows) * config.context;
  const double f32 = all_reduce_bytes(kF32 * tokens * config.width, step.ranks);
  const double forward = f32 * step.forward_bytes / kF32;
  const double backward = step.sequence_parallel ? forward : f32;
  const int blocks = std::min(step.end - 1, config.layers) - (std::max(step.begin, 1) - 1);
  const bool embeds = step.begin == 0, heads = step.end == config.layers + 2;
  double sum = blocks * 2 * (forward + backward) + step.recomputed * 2 * forward + 8 * (step.ranks - 1);
  if (embeds) sum += f32;
  if (heads) sum += backward + all_gather_bytes(3 * kF32 * tokens * step.ranks, step.ranks);
  if (!step.sequence_parallel) return sum;
  const GptElements elements = gpt_elements(config);
  const double whole =
      blocks * elements.block_whole + (embeds ? elements.position : 0) + (heads ? elements.final_norm : 0);
  return sum + (2 * blocks + (heads ? 1 : 0)) * forward / 2 + all_reduce_bytes(kF32 * whole, step.ranks);
}

double pipeline_bubble(std::string_view schedule, int p, int m, int v) {
  // Idle time and ideal time in units of one forward of a rank's whole part (F = 1, B = 2).
  double idle = 3.0 * (p - 1);
  if (schedule == "interleaved") idle /= v;
  if (schedule == "zb-h1") idle = p - 1;
  return idle / (3.0 * m + idle);
}

}  // namespace tutti::training
