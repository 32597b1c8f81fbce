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

enum class HostLoop { all_reduce, all_gather, reduce_scatter };
const char* name_of(HostLoop loop);

class RooflineDevice {
 public:
  /// Buffers of `most` bytes for so many ranks, all on one GPU, which is made current.
  RooflineDevice(std::size_t most, int ranks);
  ~RooflineDevice();

  /// One copy of `bytes` on the device: as many bytes are read, and as many written.
  double copy_us(std::size_t bytes, double seconds);
  /// A collective (sum, f32) whose rows have `bytes`, in place, by cudaMemcpyAsync and an add kernel in one stream.
  /// all_reduce: everything is added up in the first rank's buffer, by way of another one, and copied to the others.
  /// reduce_scatter: each rank's share so in its own buffer. all_gather: each share is copied to all the others. Shares
  /// are bytes / ranks, rounded down to whole 16 bytes; 0: nothing is left.
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
