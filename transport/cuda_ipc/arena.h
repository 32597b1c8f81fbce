// The device memory that Tutti hands out: pieces of large segments, so that peers map few things, and each once. One
// arena per GPU and process.
//
// Threads: all functions may be called from any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/status.h"
#include "transport/cuda_ipc/exportable.h"

namespace tutti::transport {

class DeviceArena {
 public:
  /// A segment has at least so many bytes.
  static constexpr std::size_t kSegment = std::size_t{64} << 20;

  /// This process's arena of a GPU. Errors: unsupported without a driver, invalid_argument without such a GPU.
  static Result<DeviceArena*> of(int device);

  /// Zero-filled, 512-byte aligned. Errors: memory_limit.
  Result<std::byte*> allocate(std::size_t bytes);
  /// Waits for what the GPU has to do, as cudaFree() does. False: it is not from any arena. A segment that becomes
  /// empty goes back to the system, unless it was exported to peers: then it is kept for later allocations.
  static bool deallocate(void* pointer);

  /// A segment by its number, in the order in which they were made. Null when it went back.
  struct Segment {
    std::unique_ptr<OwnMemory> memory;
    std::map<std::size_t, std::size_t> free;  // offset -> bytes
    std::map<std::size_t, std::size_t> used;  // offset -> bytes
    bool exported = false;
  };
  std::size_t segments() const { return count_.load(std::memory_order_acquire); }
  /// Returns what peers need to map it, which stays from now on; none if it went back.
  struct ExportedSegment {
    CUdeviceptr base = 0;
    Export how;
    int descriptor = -1;  // the segment's own
  };
  std::optional<ExportedSegment> export_segment(std::size_t segment);
  /// The segment that holds [address, address + bytes), and where in it.
  struct Place {
    std::size_t segment = 0;
    std::size_t offset = 0;
  };
  std::optional<Place> find(const void* address, std::size_t bytes) const;
  std::size_t allocated() const;  // bytes

 private:
  explicit DeviceArena(int device) : device_(device) {}
  static std::optional<std::byte*> take_from(Segment& segment, std::size_t bytes);
  std::byte* take(std::size_t bytes);  // null: no segment has room
  Result<std::byte*> grow(std::size_t bytes);
  Status zero(std::byte* from, std::size_t bytes) const;
  bool release(void* pointer);

  const int device_;
  std::mutex growth_mutex_;  // held while the driver makes a segment, which may wait for kernels; for nothing else
  mutable std::mutex mutex_;
  std::vector<Segment> all_;           // guarded by mutex_
  std::size_t allocated_ = 0;          // guarded by mutex_
  std::atomic<std::size_t> count_{0};  // of all_
};

}  // namespace tutti::transport
