#include "collectives/baseline/plugins/nccl_device.h"

#include "device/memory_kind.h"
#if TUTTI_HAS_CUDA
#include <utility>

#include "base/even_share.h"
#include "device/driver.h"
#endif

namespace tutti {

#if TUTTI_HAS_CUDA

namespace {

constexpr std::size_t kAlignment = 256;  // as cuMemAlloc gives it

CUdeviceptr address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

}  // namespace

Result<int> choose_gpu(int rank) {
  if (!device::available().ok()) return -1;
  TUTTI_ASSIGN(const int current, device::current_device());
  if (current >= 0) return current;
  TUTTI_ASSIGN(const int count, device::device_count());
  return rank % count;
}

Status on_gpu(int gpu, const std::function<Status()>& body) {
  if (gpu < 0) return body();
  TUTTI_ASSIGN(const device::CurrentContext current, device::enter(gpu));
  return body();
}

NcclStaging::~NcclStaging() {
  if (stream_ == nullptr) return;
  (void)on_gpu(gpu_, [&]() -> Status {
    TUTTI_ASSIGN(const device::Driver* cuda, device::driver());
    if (memory_ != nullptr) (void)cuda->MemFree(address(memory_));
    (void)cuda->StreamDestroy(static_cast<CUstream>(stream_));
    return {};
  });
}

Status NcclStaging::reserve(std::size_t bytes) {
  TUTTI_ASSIGN(const device::Driver* cuda, device::driver());
  if (stream_ == nullptr) {
    CUstream stream = nullptr;
    TUTTI_TRY(device::check(cuda->StreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0),
                            "cuStreamCreateWithPriority"));
    stream_ = stream;
  }
  if (bytes <= bytes_) return {};
  bytes_ = 0;
  if (memory_ != nullptr)
    TUTTI_TRY(device::check(cuda->MemFree(address(std::exchange(memory_, nullptr))), "cuMemFree"));
  CUdeviceptr made = 0;
  TUTTI_TRY(device::check(cuda->MemAlloc(&made, bytes), "cuMemAlloc"));
  memory_ = reinterpret_cast<void*>(made);
  bytes_ = bytes;
  return {};
}

Status NcclStaging::run_there(std::span<Buffer> buffers, const std::function<Status(Stream)>& call) {
  std::size_t total = 0;
  for (const Buffer& buffer : buffers) total += round_up(buffer.bytes, kAlignment);
  TUTTI_TRY(reserve(total));
  TUTTI_ASSIGN(const device::Driver* cuda, device::driver());
  const auto stream = static_cast<CUstream>(stream_);
  const auto copy = [&](const Buffer& buffer) {
    const CUdeviceptr there = address(buffer.on_gpu);
    const CUdeviceptr here = address(buffer.host);
    return device::check(buffer.written ? cuda->MemcpyAsync(here, there, buffer.bytes, stream)
                                        : cuda->MemcpyAsync(there, here, buffer.bytes, stream),
                         "cuMemcpyAsync");
  };
  auto* place = static_cast<std::byte*>(memory_);
  for (Buffer& buffer : buffers) {
    buffer.on_gpu = std::exchange(place, place + round_up(buffer.bytes, kAlignment));
    if (!buffer.written) TUTTI_TRY(copy(buffer));
  }
  TUTTI_TRY(call(stream_));
  for (const Buffer& buffer : buffers) {
    if (buffer.written) TUTTI_TRY(copy(buffer));
  }
  return {};
}

Status NcclStaging::run(std::span<Buffer> buffers, const std::function<Status(Stream)>& call) {
  return on_gpu(gpu_, [&]() -> Status {
    const Status status = run_there(buffers, call);
    if (stream_ == nullptr) return status;
    // After a failure too: what has been put into the stream works on the caller's buffers.
    TUTTI_ASSIGN(const device::Driver* cuda, device::driver());
    const Status end = device::check(cuda->StreamSynchronize(static_cast<CUstream>(stream_)), "cuStreamSynchronize");
    return status.ok() ? end : status;
  });
}

#else

Result<int> choose_gpu(int /*rank*/) { return -1; }
Status on_gpu(int /*gpu*/, const std::function<Status()>& body) { return body(); }
NcclStaging::~NcclStaging() = default;
Status NcclStaging::run(std::span<Buffer> /*buffers*/, const std::function<Status(Stream)>& /*call*/) {
  return device::available();
}

#endif

}  // namespace tutti
