// The fat binary's kernels as the driver has them, in the context of one GPU. Shared by the executors of that GPU.
// Threads: any.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "collectives/executor/cuda/kernels.h"
#include "device/driver.h"

namespace tutti::executor::cuda {

class Kernels {
 public:
  /// Errors: unsupported (this build has no kernels, or none for this GPU), and what the driver says.
  static Result<std::shared_ptr<const Kernels>> get(int device);
  ~Kernels();
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;

  CUfunction function(int kernel) const { return functions_[kernel]; }
  /// Blocks of the kernel that needs most, over the whole GPU: so many of any can be resident.
  int capacity() const { return capacity_; }
  const std::string& where() const { return where_; }  // "GPU 0 (NVIDIA H200)"

 private:
  Kernels() = default;
  Status load(int device);

  CUlibrary library_ = nullptr;
  CUfunction functions_[kKernels] = {};
  int capacity_ = 0;
  std::string where_;
};

}  // namespace tutti::executor::cuda
