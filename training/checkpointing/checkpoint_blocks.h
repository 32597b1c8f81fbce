// Checkpoints blocks of a model: block 0, `every`, 2 * `every` and so on. 1: all of them; 0: none (as it was made). The
// rest keep their activations. For each block that is checkpointed, its input is kept.
//
//   checkpoint_blocks(model, 2);       // before or after DistributedDataParallel is made; before the first forward
//
// Model: any with set_block_runner(): Gpt, GptStage (blocks are counted in the whole model), TensorParallelGpt, whose
//   random states are restored too.
// Errors: invalid_argument when `every` is negative.
#pragma once

#include <torch/torch.h>

#include "training/checkpointing/checkpoint.h"

namespace tutti::training {

void check_every(int every);  // of checkpoint_blocks

template <class Model>
void checkpoint_blocks(Model& model, int every, CheckpointOptions options = {}) {
  check_every(every);
  if (every == 0) {
    model->set_block_runner({});
    return;
  }
  if constexpr (requires { model->random().generators(); }) {
    options.default_generators = false;  // it draws from its own
    options.generators = model->random().generators();
  }
  model->set_block_runner([every, options](auto& block, int index, const torch::Tensor& x) {
    if (index % every != 0) return block->forward(x);
    return checkpoint(
        *block, [block](const torch::Tensor& input) mutable { return block->forward(input); }, x, options);
  });
}

}  // namespace tutti::training
