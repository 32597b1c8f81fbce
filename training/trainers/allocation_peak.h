// The most memory that tensors made in a piece of code took at once.
//
//   AllocationPeak peak;
//   loss(model->forward(x), y).backward();
//   peak.bytes();     // activations and what else forward and backward made: gradients on their way, temporaries
//
// Counts what LibTorch's allocator for a kind of device gives to this thread (and to the backward passes it starts)
// while the object
//   lives, less what of it was given back; not what was there before, nor memory of others (tutti::allocate: buckets
//   and gathered parameters; scratch of matrix libraries). Exact, and the same in every run of the same code.
// Cost: a locked look-up for each tensor made or freed; use it for a step or two. Threads: of one.
// Nesting: not with torch's own profiler. LibTorch's warnings are off meanwhile (it would tell of each block that is
//   older than this object).
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstddef>
#include <memory>

namespace tutti::training {

class AllocationPeak {
 public:
  explicit AllocationPeak(c10::DeviceType device = c10::kCPU);
  ~AllocationPeak();
  AllocationPeak(const AllocationPeak&) = delete;
  AllocationPeak& operator=(const AllocationPeak&) = delete;
  std::size_t bytes() const;  // so far

 private:
  struct Counter;
  std::shared_ptr<Counter> counter_;
  int log_level_;  // of LibTorch, before
  c10::DebugInfoGuard guard_;
};

}  // namespace tutti::training
