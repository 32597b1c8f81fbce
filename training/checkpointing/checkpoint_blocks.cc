#include "training/checkpointing/checkpoint_blocks.h"

#include <fmt/format.h>

#include "tutti/tutti.hpp"

namespace tutti::training {

void check_every(int every) {
  if (every >= 0) return;
  throw Error(Code::invalid_argument, fmt::format("checkpoint_blocks: every is {}; it can be 0 (none) or more", every));
}

}  // namespace tutti::training
