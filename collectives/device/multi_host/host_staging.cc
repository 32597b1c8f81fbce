#include "collectives/device/multi_host/host_staging.h"

#include <fmt/format.h>

namespace tutti {

namespace {

constexpr std::size_t kSlotBytes = std::size_t{4} << 20;
constexpr std::size_t kLeastSlotBytes = std::size_t{64} << 10;

}  // namespace

Result<std::size_t> HostStaging::slot_bytes(std::size_t room) {
  std::size_t bytes = kSlotBytes;
  while (bytes > kLeastSlotBytes && 2 * kSlots * bytes > room) bytes /= 2;
  if (2 * kSlots * bytes <= room) return bytes;
  return Status(Code::memory_limit,
                fmt::format("calls on device memory that go through the host's take at least {} bytes "
                            "of pinned memory; memory_limit leaves {}",
                            2 * kSlots * bytes, room));
}

}  // namespace tutti

#if TUTTI_HAS_CUDA

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/even_share.h"
#include "device/driver.h"

namespace tutti {

namespace {

constexpr std::size_t kLine = 128;

// In front of the slots. Each is written by one side, and the other waits for it.
struct alignas(kLine) Counters {
  alignas(kLine) std::uint64_t come = 0;  // by the stream: the last fragment that it has come to
  alignas(kLine) std::uint64_t done = 0;  // by the proxy: the last fragment that has ended
};

class PinnedStaging final : public HostStaging {
 public:
  PinnedStaging(int device, std::size_t slot_bytes, std::size_t room)
      : HostStaging(slot_bytes), device_(device), room_(room) {}

  ~PinnedStaging() override {
    if (cuda_ == nullptr) return;
    const auto context = device::enter(device_);
    const device::UncapturedCalls uncaptured(*cuda_);
    if (putting_) return;  // put() has failed, so what the stream still does is unknown
    for (const std::int64_t since = now_ns(); put_any_ && cuda_->EventQuery(behind_) == CUDA_ERROR_NOT_READY;) {
      if (now_ns() - since > limit_ns_) return;  // the stream waits behind something of the caller's
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    if (behind_ != nullptr) cuda_->EventDestroy(behind_);
    if (counters_ != nullptr) cuda_->MemFreeHost(counters_);
    for (const Block& block : blocks_) cuda_->MemFreeHost(block.memory);
    if (on_device_ != 0) cuda_->MemFree(on_device_);
    if (direct_ != 0) cuda_->MemFree(direct_);
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  Status set_up() {
    TUTTI_ASSIGN(const device::Driver* cuda, device::driver());
    if (device_ < 0) {
      TUTTI_ASSIGN(const int current, device::current_device());
      device_ = std::max(current, 0);
    }
    where_ = device::name_of(device_);
    TUTTI_ASSIGN(const int can_wait, device::attribute(device_, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS));
    if (can_wait == 0) {
      return unsupported(where_ + " has no streams that wait for values; expected host memory");
    }
    TUTTI_ASSIGN(const auto context, device::enter(device_));
    cuda_ = cuda;
    TUTTI_ASSIGN(std::byte* const memory, allocate(pinned()));
    counters_ = new (memory) Counters();
    const device::UncapturedCalls uncaptured(*cuda_);
    return device::check(cuda_->EventCreate(&behind_, CU_EVENT_DISABLE_TIMING), "cuEventCreate", where_);
  }

  void set_limit(std::int64_t ns) override { limit_ns_ = ns; }
  int device() const override { return device_; }
  std::size_t memory() const override {
    return pinned() + (on_device_ != 0 ? slot_bytes_ : 0) + (direct_ != 0 ? slots_bytes() : 0);
  }

  std::byte* input(std::uint64_t fragment) override { return slot(fragment, 0); }
  std::byte* output(std::uint64_t fragment) override { return slot(fragment, 1); }

  Result<std::byte*> block(std::size_t bytes) override {
    if (!blocks_.empty() && blocks_.back().bytes >= bytes) return blocks_.back().memory;
    // Those before are still used by fragments that are under way.
    const std::size_t left = room_ - std::min(room_, pinned());
    if (bytes > left) {
      return Status(Code::memory_limit,
                    fmt::format("memory_limit is {}, of which {} bytes are taken", room_, pinned()));
    }
    const std::size_t preferred = blocks_.empty() ? kSlotBytes : 2 * blocks_.back().bytes;
    const std::size_t size = std::max(bytes, std::min(preferred, left));
    TUTTI_ASSIGN(const auto context, device::enter(device_));
    TUTTI_ASSIGN(std::byte* const memory, allocate(size));
    blocks_.push_back({memory, size});
    return memory;
  }

  Result<std::byte*> on_device() override {
    if (on_device_ == 0) {
      TUTTI_ASSIGN(const auto context, device::enter(device_));
      const device::UncapturedCalls uncaptured(*cuda_);
      TUTTI_TRY(device::check(cuda_->MemAlloc(&on_device_, slot_bytes_), "cuMemAlloc", where_));
    }
    return reinterpret_cast<std::byte*>(on_device_);
  }

  Result<Direct> open_gdr() override {
    TUTTI_ASSIGN(direct_is_ordered_, device::orders_direct_writes(device_));
    TUTTI_ASSIGN(const auto context, device::enter(device_));
    const device::UncapturedCalls uncaptured(*cuda_);
    TUTTI_TRY(device::check(cuda_->MemAlloc(&direct_, slots_bytes()), "cuMemAlloc", where_));
    const CUresult given = cuda_->MemGetHandleForAddressRange(&descriptor_, direct_, slots_bytes(),
                                                              CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    TUTTI_TRY(device::check(given, "cuMemGetHandleForAddressRange", where_));
    return Direct{reinterpret_cast<std::byte*>(direct_), slots_bytes(), {descriptor_, 0}};
  }

  void abandon_gdr() override { direct_ = 0; }

  // A signal that has come proves that the data before it is on its way into the GPU's memory, on another path than the
  // signal, which went to the host's. Where the GPU does not order the two, the driver waits for such writes.
  Status settle_gdr() override {
    if (direct_is_ordered_) return {};
    TUTTI_ASSIGN(const auto context, device::enter(device_));
    return device::check(cuda_->FlushGPUDirectRDMAWrites(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                                         CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER),
                         "cuFlushGPUDirectRDMAWrites", where_);
  }

  Status check(Stream stream) override {
    TUTTI_ASSIGN(const auto context, device::enter(device_));
    CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    TUTTI_TRY(device::check(cuda_->StreamGetCaptureInfo(handle(stream), &capturing, nullptr, nullptr, nullptr, nullptr),
                            "cuStreamGetCaptureInfo", where_));
    if (capturing == CU_STREAM_CAPTURE_STATUS_NONE) return {};
    return unsupported(fmt::format(
        "a call on memory of {} cannot be captured into a graph where it goes through the host's: the stream "
        "waits there for values that change with every call",
        where_));
  }

  std::uint64_t begin(std::size_t count) override {
    const std::uint64_t first = next_;
    next_ += count;
    return first;
  }

  Status put(std::uint64_t first, std::span<const Fragment> fragments, Stream stream) override {
    TUTTI_ASSIGN(const auto context, device::enter(device_));
    const CUstream on = handle(stream);
    if (put_any_ && (on != last_stream_ || on == CU_STREAM_PER_THREAD)) {
      TUTTI_TRY(device::check(cuda_->StreamWaitEvent(on, behind_, 0), "cuStreamWaitEvent", where_));
    }
    last_stream_ = on;
    putting_ = true;
    const std::size_t ahead = kSlots - 1;
    for (std::size_t i = 0; i < fragments.size() + ahead; ++i) {
      if (i < fragments.size()) TUTTI_TRY(bring_in(first + i, fragments[i], on));
      if (i >= ahead) TUTTI_TRY(take_out(first + i - ahead, fragments[i - ahead], on));
    }
    TUTTI_TRY(device::check(cuda_->EventRecord(behind_, on), "cuEventRecord", where_));
    put_any_ = true;
    putting_ = false;
    return {};
  }

  bool reached(std::uint64_t fragment) const override {
    return std::atomic_ref<std::uint64_t>(counters_->come).load(std::memory_order_acquire) >= fragment;
  }
  void end(std::uint64_t fragment) override {
    std::atomic_ref<std::uint64_t>(counters_->done).store(fragment, std::memory_order_release);
  }

 private:
  struct Block {
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
  };

  static CUstream handle(Stream stream) { return static_cast<CUstream>(stream); }
  static CUdeviceptr address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

  std::byte* slot(std::uint64_t fragment, std::size_t direction) {
    return reinterpret_cast<std::byte*>(counters_ + 1) + slot_at(fragment, direction);
  }
  std::size_t slots_bytes() const { return 2 * kSlots * slot_bytes_; }
  std::size_t pinned() const {
    std::size_t bytes = sizeof(Counters) + slots_bytes();
    for (const Block& block : blocks_) bytes += block.bytes;
    return bytes;
  }

  // REQUIRES: the device's context is current.
  Result<std::byte*> allocate(std::size_t bytes) {
    const device::UncapturedCalls uncaptured(*cuda_);
    void* made = nullptr;
    TUTTI_TRY(device::check(cuda_->MemHostAlloc(&made, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
                            "cuMemHostAlloc", where_));
    return static_cast<std::byte*>(made);
  }

  // In the stream the copies are before the counter: the proxy that sees the counter sees the data.
  Status bring_in(std::uint64_t fragment, const Fragment& what, CUstream stream) {
    if (what.before) TUTTI_TRY(what.before());
    for (const Piece& piece : what.in) TUTTI_TRY(copy(piece.slot, piece.device, piece.bytes, stream));
    return device::check(
        cuda_->StreamWriteValue64(stream, address(&counters_->come), fragment, CU_STREAM_WRITE_VALUE_DEFAULT),
        "cuStreamWriteValue64", where_);
  }

  Status take_out(std::uint64_t fragment, const Fragment& what, CUstream stream) {
    TUTTI_TRY(
        device::check(cuda_->StreamWaitValue64(stream, address(&counters_->done), fragment, CU_STREAM_WAIT_VALUE_GEQ),
                      "cuStreamWaitValue64", where_));
    for (const Piece& piece : what.out) TUTTI_TRY(copy(piece.device, piece.slot, piece.bytes, stream));
    return what.after ? what.after() : Status();
  }

  Status copy(void* to, const void* from, std::size_t bytes, CUstream stream) {
    if (bytes == 0) return {};
    return device::check(cuda_->MemcpyAsync(address(to), address(from), bytes, stream), "cuMemcpyAsync", where_);
  }

  int device_;
  const std::size_t room_;
  const device::Driver* cuda_ = nullptr;
  std::string where_;             // "GPU 0 (NVIDIA H200)"
  Counters* counters_ = nullptr;  // pinned, and the slots behind them
  std::vector<Block> blocks_;
  CUdeviceptr on_device_ = 0;
  CUdeviceptr direct_ = 0;
  int descriptor_ = -1;  // of direct_, as a dmabuf
  bool direct_is_ordered_ = false;
  std::uint64_t next_ = 1;
  CUevent behind_ = nullptr;  // the last fragment that was put
  bool put_any_ = false;
  bool putting_ = false;
  CUstream last_stream_ = nullptr;
  std::int64_t limit_ns_ = 0;
};

}  // namespace

Result<std::unique_ptr<HostStaging>> HostStaging::create(int device, std::size_t slot_bytes, std::size_t room) {
  auto staging = std::make_unique<PinnedStaging>(device, slot_bytes, room);
  TUTTI_TRY(staging->set_up());
  return std::unique_ptr<HostStaging>(std::move(staging));
}

}  // namespace tutti

#else

namespace tutti {

Result<std::unique_ptr<HostStaging>> HostStaging::create(int, std::size_t, std::size_t) {
  return unsupported("this build of Tutti has no CUDA; expected host memory");
}

}  // namespace tutti

#endif  // TUTTI_HAS_CUDA
