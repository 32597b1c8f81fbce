// The speed of a GPU without any protocol, to compare collectives with: the limit of copies, and a host loop as a user
// without a library would write it.
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

enum class HostLoop { all_reduce, all_gather, reduce_scatter };
const char* name_of(HostLoop loop);

class RooflineDevice {
 public:
  /// Makes buffers of `most` bytes for `ranks` ranks, all on one GPU, which becomes current.
  RooflineDevice(std::size_t most, int ranks);
  ~RooflineDevice();

  /// Returns the time of one copy on the device, which reads `bytes` and writes `bytes`.
  double copy_us(std::size_t bytes, double seconds);
  /// Returns the time of a collective (sum, f32) of `bytes`, in place, by cudaMemcpyAsync and an add kernel in one
  /// stream. all_reduce: all inputs are added in the first rank's buffer, through another one, and copied to the
  /// others. reduce_scatter: each rank's share is added in its own buffer. all_gather: each share is copied to all
  /// other ranks. Shares are bytes / ranks, rounded down to whole 16 bytes. Returns 0 if that is nothing.
  double loop_us(HostLoop loop, std::size_t bytes, double seconds);

  Gpu& gpu() { return gpu_; }
  char* buffer(int rank) const { return buffers_[static_cast<std::size_t>(rank)].data(); }

 private:
  struct Kernel;
  template <class Call>
  double time(double seconds, const Call& call);
  void copy(char* to, const char* from, std::size_t bytes);
  void add(char* to, char* from, std::size_t bytes);
  void run(HostLoop loop, std::size_t bytes);

  Gpu gpu_;
  std::vector<Memory> buffers_;
  Memory other_;
  std::unique_ptr<Kernel> kernel_;
};

}  // namespace tutti::perf
