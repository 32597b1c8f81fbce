#include "training/streams.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "training/memory/pool.h"

namespace tutti::training {
namespace {

c10::impl::VirtualGuardImpl guard_of(c10::Device device) { return c10::impl::VirtualGuardImpl(device.type()); }

c10::Stream current_stream(c10::Device device) { return guard_of(device).getStream(device); }

/// `stream` goes on when what the current one holds by now is done.
const c10::Stream& behind_current(const c10::Stream& stream) {
  c10::Event before(stream.device_type());
  before.record(current_stream(stream.device()));
  before.block(stream);
  return stream;
}

}  // namespace

bool is_communicable(const torch::Tensor& tensor) {
  return (tensor.is_cpu() || tensor.is_cuda()) && tensor.layout() == torch::kStrided;
}

torch::Tensor empty_communicable(at::IntArrayRef sizes, torch::ScalarType type, c10::Device device) {
  if (device.is_cpu()) return RegisteredPool::process()->empty(sizes, type);
  return torch::empty(sizes, torch::dtype(type).device(device));
}

CallOptions in_stream_of(const torch::Tensor& tensor, CallOptions options) {
  if (!tensor.is_cpu()) options.stream = current_stream(tensor.device()).native_handle();
  return options;
}

void make_current(c10::Device device) {
  if (!device.is_cpu()) guard_of(device).setDevice(device);
}

void wait_for(c10::Device device) {
  if (!device.is_cpu()) guard_of(device).synchronizeStream(current_stream(device));
}

TensorWork::TensorWork(const c10::Stream& stream) {
  auto end = std::make_shared<c10::Event>(stream.device_type());
  end->record(stream);
  end_ = std::move(end);
}

void TensorWork::wait() {
  if (!end_) return work_.wait();
  end_->block(current_stream(end_->device()));
}

SideStream::StreamScope::StreamScope(const c10::Stream& stream)
    : stream_(behind_current(stream)), before_(guard_of(stream.device()).exchangeStream(stream)) {}

SideStream::StreamScope::~StreamScope() { guard_of(before_.device()).exchangeStream(before_); }

const c10::Stream& SideStream::of(c10::Device device) {
  if (!stream_ || stream_->device() != device) stream_ = guard_of(device).getStreamFromGlobalPool(device, false);
  return *stream_;
}

}  // namespace tutti::training
