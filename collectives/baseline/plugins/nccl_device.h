// The GPU of a rank under NCCL, and how host memory gets to it: NCCL takes nothing but GPU memory.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "base/status.h"
#include "tutti/types.hpp"

namespace tutti {

/// The calling thread's current GPU, which the program has chosen; when it has none, the one in turn for this rank,
/// since NCCL wants each rank on a GPU of its own. -1: the machine has no GPU. Errors: what the driver says.
Result<int> choose_gpu(int rank);

/// Runs `body` with this GPU as the calling thread's current one; with -1 as it is.
Status on_gpu(int gpu, const std::function<Status()>& body);

/// The copies on a GPU of one call's host buffers. One thread at a time.
class NcclStaging {
 public:
  struct Buffer {
    void* host = nullptr;
    std::size_t bytes = 0;
    bool written = false;    // by the call; else it reads it
    void* on_gpu = nullptr;  // set before the call is made
  };

  /// Makes nothing before it is used.
  explicit NcclStaging(int gpu) : gpu_(gpu) {}
  ~NcclStaging();
  NcclStaging(const NcclStaging&) = delete;
  NcclStaging& operator=(const NcclStaging&) = delete;

  /// Makes `call` in a stream, between the copies to the GPU and those back, and returns when all is done. REQUIRES: a
  /// GPU.
  Status run(std::span<Buffer> buffers, const std::function<Status(Stream)>& call);

 private:
  Status run_there(std::span<Buffer> buffers, const std::function<Status(Stream)>& call);
  Status reserve(std::size_t bytes);

  const int gpu_;
  Stream stream_ = nullptr;
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace tutti
