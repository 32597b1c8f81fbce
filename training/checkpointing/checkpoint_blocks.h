// Checkpoints blocks of a Gpt: block 0, `every`, 2 * `every` and so on. 1: all of them; 0: none (as it was made). The
// rest keep their activations. For each block that is checkpointed, its input of rows x time x width is kept.
//
//   checkpoint_blocks(model, 2);       // before or after DistributedDataParallel is made; before the first forward
//
// Errors: invalid_argument when `every` is negative.
#pragma once

#include "training/checkpointing/checkpoint.h"
#include "training/models/gpt.h"

namespace tutti::training {

void checkpoint_blocks(Gpt& model, int every, const CheckpointOptions& options = {});

}  // namespace tutti::training
