// A rank's GPU in a benchmark: the device, a stream, copies, graphs.
//
// One thread uses it, whose current device it is as long as it lives. Throws tutti::Error: unsupported without a
// driver, or in a build without CUDA.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "tutti/tutti.hpp"

namespace tutti::perf {

class Gpu {
 public:
  /// Takes a GPU for the `place`-th rank of its host, in turn. `null_stream`: the legacy default stream.
  Gpu(int place, bool null_stream);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  Stream stream() const;
  std::string name() const;  // "GPU 0 (NVIDIA H200)"

  // Copies and fills are done when they return.
  void upload(void* to, const void* from, std::size_t bytes);
  void download(void* to, const void* from, std::size_t bytes);
  void fill(void* to, unsigned char value, std::size_t bytes);
  /// Waits until the stream has done all its work.
  void synchronize();

  /// Makes a graph of the work that `calls` puts into the stream; it replaces an earlier one. REQUIRES: not the null
  /// stream.
  void capture(const std::function<void()>& calls);
  /// Puts the graph into the stream.
  void replay();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// Gpu::name() of the `place`-th rank of this host, without its Gpu; "no GPU" where there is none.
std::string gpu_name(int place);

}  // namespace tutti::perf
