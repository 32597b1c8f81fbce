// Blocks of registered memory (tutti::allocate) that are used again. A fresh block costs a call of the kernel, a page
// fault per page here and one more in every peer that reads it; a block from the pool costs a look at a list.
//
//   torch::Tensor x = RegisteredPool::process()->empty({rows, width}, torch::kFloat32);   // goes back with its storage
//   std::shared_ptr<void> block = pool->take(bytes);                                      // goes back with the pointer
//
// Which pool: one for the process serves all ranks, threads too, since peers map all registered memory of a process at
//   once. Make one of your own where its bytes shall be counted apart.
// Contents: whatever was there before; not zero.
// Fit: the smallest waiting block that is large enough and at most twice as large as asked.
// Memory: what is live and what waits are together at most twice the most that was live at once; past that the block
//   that has waited longest is deallocated. (Blocks used one at a time never get there: of two that wait, one is more
//   than twice as large as the other.)
// Threads: any, releasing too. Lifetime: blocks may outlive the pool, and are deallocated then. A forked child gets a
//   process() pool of its own; pools that it inherited are not to be used there.
// Errors: memory_limit, as tutti::allocate; blocks that wait are given up first.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace tutti::training {

class RegisteredPool {
 public:
  /// Sizes are those of the blocks, which may be up to twice as large as was asked for.
  struct Stats {
    std::size_t live_bytes = 0;       // taken and not yet released
    std::size_t waiting_bytes = 0;    // released, to be used again
    std::size_t peak_live_bytes = 0;  // since the last trim()
    std::uint64_t taken = 0;          // blocks, since the pool was made
    std::uint64_t allocated = 0;      // of them, those that had to be allocated
  };

  static std::shared_ptr<RegisteredPool> process();

  RegisteredPool();
  ~RegisteredPool();
  RegisteredPool(const RegisteredPool&) = delete;
  RegisteredPool& operator=(const RegisteredPool&) = delete;

  /// Returns at least `bytes`, 64-byte aligned. Null for none.
  std::shared_ptr<void> take(std::size_t bytes);
  /// A contiguous CPU tensor in a block of the pool.
  torch::Tensor empty(at::IntArrayRef sizes, torch::ScalarType type);
  /// Deallocates what waits, and forgets the peak.
  void trim();
  Stats stats() const;

 private:
  class Blocks;
  std::shared_ptr<Blocks> blocks_;  // kept by each block that is out
};

}  // namespace tutti::training
