#include "training/checkpointing/checkpoint_blocks.h"

#include <fmt/format.h>

#include "tutti/tutti.hpp"

namespace tutti::training {

void checkpoint_blocks(Gpt& model, int every, const CheckpointOptions& options) {
  if (every < 0) {
    throw Error(Code::invalid_argument,
                fmt::format("checkpoint_blocks: every is {}; it can be 0 (none) or more", every));
  }
  if (every == 0) {
    model->set_block_runner({});
    return;
  }
  model->set_block_runner([every, options](GptBlock& block, int index, const torch::Tensor& x) {
    if (index % every != 0) return block->forward(x);
    return checkpoint(
        *block, [block](const torch::Tensor& input) mutable { return block->forward(input); }, x, options);
  });
}

}  // namespace tutti::training
