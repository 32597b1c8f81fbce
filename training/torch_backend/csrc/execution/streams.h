// What orders calls on device memory: streams, through torch's own interface to whatever accelerator it has.
//
//   StreamScope scope(side_streams.of(device));  // from here to its end, that is the current one
//   scope.uses(tensor);                         // its memory is not given away before the stream is done with it
//   operation.stream = scope.stream().native_handle();
//   const std::shared_ptr<DeviceEnd> end = scope.end();
//   end->block_current_stream();               // later: what the caller does next on the device waits for it
//
// Why not CUDA's own names: one build then serves torch with and without CUDA.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "csrc/base/signals.h"

namespace tutti_torch {

/// A point in a stream, behind what was put into it before. Any thread.
class DeviceEnd {
 public:
  explicit DeviceEnd(const c10::Stream& stream);
  /// Whether the device has come there.
  bool reached() const { return event_.query(); }
  /// Until then or `deadline`, seeing signals; false when it has not by then. Throws as check_signals() (signals.h).
  bool wait_until(Clock::time_point deadline) const;
  /// Makes the device's current stream wait for it: work that is put there from now on comes behind it.
  void block_current_stream() const;
  /// Calls `body` while the stream is the current one.
  template <class Body>
  void in_stream(Body&& body) const;
  c10::Device device() const { return stream_.device(); }

 private:
  c10::Stream stream_;
  mutable c10::Event event_;
};

/// The current stream of a device becomes another one, and that again when this is destroyed.
class CurrentStream {
 public:
  explicit CurrentStream(const c10::Stream& stream);
  ~CurrentStream();
  CurrentStream(const CurrentStream&) = delete;
  CurrentStream& operator=(const CurrentStream&) = delete;

 private:
  c10::Stream before_;
};

/// The current stream of `device`.
c10::Stream current_stream(c10::Device device);
/// One beside it for each device, out of torch's pool when it is first asked for. Any thread.
class SideStreams {
 public:
  c10::Stream of(c10::Device device);

 private:
  std::mutex mutex_;
  std::unordered_map<c10::Device, c10::Stream> streams_;  // guarded by mutex_
};
/// Until the device has done all that is in its current stream.
void synchronize_current_stream(c10::Device device);

/// One call's time in a stream: behind what the caller has put into the current stream until now.
class StreamScope {
 public:
  explicit StreamScope(const c10::Stream& stream);
  const c10::Stream& stream() const { return stream_; }
  /// The allocator hears of it; not needed for memory that was allocated in this stream.
  void uses(const at::Tensor& tensor) const;
  std::shared_ptr<DeviceEnd> end() const { return std::make_shared<DeviceEnd>(stream_); }

 private:
  const c10::Stream stream_;
  const bool aside_;  // it is not the stream that was current
  std::optional<CurrentStream> current_;
};

template <class Body>
void DeviceEnd::in_stream(Body&& body) const {
  const CurrentStream current(stream_);
  std::forward<Body>(body)();
}

}  // namespace tutti_torch
