// The ways to run calls on device memory, in the order in which they are asked. A new path is a file of its own and a
// line in device_paths.cc.
//
// Threads: by the caller's thread, one at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "collectives/call.h"
#include "collectives/device/call_parts.h"
#include "collectives/device/device_path.h"
#include "collectives/device/multi_host/fragment_pipeline.h"

namespace tutti {

class DevicePaths {
 public:
  explicit DevicePaths(const CallParts& parts);
  /// REQUIRES: the queue is idle.
  ~DevicePaths();
  DevicePaths(const DevicePaths&) = delete;
  DevicePaths& operator=(const DevicePaths&) = delete;

  /// Returns the GPU whose memory the buffers are, or -1: they are the host's. Errors: invalid_argument (the buffers
  /// are on two GPUs, on both kinds of memory, or not on the communicator's GPU).
  Result<int> device_of(const Call& call) const;
  /// Returns the GPU of a group of messages, some of which are on device memory. Errors: as above; tags, any source.
  Result<int> device_of(std::span<const Transfer> transfers) const;

  /// Makes the first path ready. A collective call.
  Status open(int device);
  /// Puts valid calls on one GPU into their streams. Returns then.
  Status run(std::span<const Call> calls, int device);
  /// Runs an all_to_allv whose counts have been exchanged.
  Status run_uneven(const Call& data, int device);
  /// Runs a valid group of messages on one GPU.
  Status run_p2p(std::span<const Transfer> transfers, int device);

  /// Returns why paths were refused, for explain_last_call(): "; no GPUDirect: ..."; empty: none was.
  std::string refusals() const;
  void add_to(MemoryReport& report) const;
  std::uint64_t calls() const;
  void set_timeout(std::chrono::nanoseconds timeout);

 private:
  /// Returns the GPU that the communicator is on; -1: none yet.
  int device_in_use() const;
  Result<DevicePath*> path_for(const Call& call, int device);

  const CallParts parts_;
  FragmentPipeline pipeline_;
  std::vector<std::unique_ptr<DevicePath>> paths_;
};

}  // namespace tutti
