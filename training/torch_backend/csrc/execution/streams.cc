#include "csrc/execution/streams.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>

namespace tutti_torch {

namespace {

c10::impl::VirtualGuardImpl guard_of(c10::Device device) { return c10::impl::VirtualGuardImpl(device.type()); }

}  // namespace

c10::Stream current_stream(c10::Device device) { return guard_of(device).getStream(device); }

c10::Stream SideStreams::of(c10::Device device) {
  const std::lock_guard lock(mutex_);
  const auto found = streams_.find(device);
  if (found != streams_.end()) return found->second;
  return streams_.emplace(device, guard_of(device).getStreamFromGlobalPool(device, false)).first->second;
}

void synchronize_current_stream(c10::Device device) { guard_of(device).synchronizeStream(current_stream(device)); }

CurrentStream::CurrentStream(const c10::Stream& stream) : before_(guard_of(stream.device()).exchangeStream(stream)) {}

CurrentStream::~CurrentStream() { guard_of(before_.device()).exchangeStream(before_); }

DeviceEnd::DeviceEnd(const c10::Stream& stream) : stream_(stream), event_(stream.device_type()) {
  event_.record(stream_);
}

bool DeviceEnd::wait_until(Clock::time_point deadline) const {
  for (Clock::duration pause = std::chrono::microseconds(10); !reached();
       pause = std::min<Clock::duration>(pause * 2, kSignalSlice)) {
    if (Clock::now() >= deadline) return false;
    check_signals();
    std::this_thread::sleep_for(pause);
  }
  return true;
}

void DeviceEnd::block_current_stream() const { event_.block(current_stream(stream_.device())); }

StreamScope::StreamScope(const c10::Stream& stream)
    : stream_(stream), aside_(stream != current_stream(stream.device())) {
  if (!aside_) return;
  c10::Event before(stream_.device_type());
  before.record(current_stream(stream_.device()));
  before.block(stream_);
  current_.emplace(stream_);
}

void StreamScope::uses(const at::Tensor& tensor) const {
  if (!aside_ || !tensor.defined()) return;
  guard_of(stream_.device()).recordDataPtrOnStream(tensor.storage().data_ptr(), stream_);
}

}  // namespace tutti_torch
