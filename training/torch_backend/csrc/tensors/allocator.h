// Tensors in registered memory (tutti::allocate), which the peers reach without a copy through a staging buffer.
//
//   at::Tensor bucket = registered_empty({elements}, at::kFloat);
//   c10::Allocator* allocator = registered_allocator();   // for torch's hooks (getMemAllocator, allocateTensor)
//
// Contents: whatever was there before. Alignment: 64 bytes; pages where it is large.
// Used again: a block that was released waits for the next request that it fits (at most twice as large as asked),
//   since a fresh one costs page faults here and in every peer. What is live and what waits are together at most twice
//   the most that was live at once; past that, the block that has waited longest is given back.
// Sharing: registered memory is shared with the peers, and with a child that forks while it lives: what either writes
//   the other sees. A forked child begins with no blocks of its own, and does not give back those that it inherited.
// Threads: any. Errors: tutti::Error memory_limit becomes torch's OutOfMemoryError.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstddef>

namespace tutti_torch {

/// One for the process; never destroyed.
c10::Allocator* registered_allocator();

/// Contiguous, on the host.
at::Tensor registered_empty(at::IntArrayRef sizes, at::ScalarType type);

struct RegisteredMemory {
  std::size_t live_bytes = 0;
  std::size_t waiting_bytes = 0;
  std::size_t peak_live_bytes = 0;
};
RegisteredMemory registered_memory();

}  // namespace tutti_torch
