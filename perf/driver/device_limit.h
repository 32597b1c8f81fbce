// What a GPU can do without any protocol, beside the collectives: the copy limit, and the host loop that somebody
// writes who has no library.
//
// Times are microseconds by the host's clock, many calls in the stream and one wait, as the collectives are timed.
// Throws tutti::Error.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "perf/driver/gpu.h"
#include "perf/driver/memory.h"

namespace tutti::perf {

class DeviceLimit {
 public:
  /// Buffers of `most` bytes for so many ranks, all on one GPU, which is made current.
  DeviceLimit(std::size_t most, int ranks);
  ~DeviceLimit();

  /// One copy of `bytes` on the device: as many bytes are read, and as many written.
  double copy_us(std::size_t bytes, double seconds);
  /// all_reduce (sum, f32) of `bytes` for each rank, by cudaMemcpyAsync and an add kernel in one stream: everything is
  /// added up in the first rank's buffer, by way of a second one, and copied to the others.
  double loop_us(std::size_t bytes, double seconds);

  Gpu& gpu() { return gpu_; }
  char* buffer(int rank) const { return buffers_[static_cast<std::size_t>(rank)].data(); }

 private:
  struct Kernel;
  template <class Call>
  double time(double seconds, const Call& call);
  void copy(char* to, const char* from, std::size_t bytes);

  Gpu gpu_;
  std::vector<Memory> buffers_;
  Memory other_;
  std::unique_ptr<Kernel> kernel_;
};

}  // namespace tutti::perf
