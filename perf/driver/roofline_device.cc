#include "perf/driver/roofline_device.h"

#include <algorithm>
#include <cstdint>

#include "base/clock.h"
#include "perf/driver/add_kernel.h"
#include "perf/driver/throwing.h"
#if TUTTI_HAS_CUDA
#include "device/driver.h"
#endif

namespace tutti::perf {

const char* name_of(HostLoop loop) {
  switch (loop) {
    case HostLoop::all_reduce: return "all_reduce";
    case HostLoop::all_gather: return "all_gather";
    case HostLoop::reduce_scatter: return "reduce_scatter";
  }
  return "?";
}

#if TUTTI_HAS_CUDA

namespace {

constexpr unsigned kThreads = 512;
constexpr unsigned kBlocksPerMultiprocessor = 4;
constexpr std::size_t kVector = 16;  // bytes that a thread adds at a time

std::size_t share_of(std::size_t bytes, int ranks) {
  return bytes / static_cast<std::size_t>(ranks) / kVector * kVector;
}

}  // namespace

struct RooflineDevice::Kernel {
  const device::Driver* cuda = nullptr;
  CUlibrary library = nullptr;
  CUfunction function = nullptr;
  unsigned blocks = 1;
  ~Kernel() {
    if (library != nullptr) (void)cuda->LibraryUnload(library);
  }
};

RooflineDevice::RooflineDevice(std::size_t most, int ranks) : gpu_(0, false), kernel_(std::make_unique<Kernel>()) {
  for (int r = 0; r < ranks; ++r) buffers_.emplace_back(most, MemoryKind::device);
  other_ = Memory(most, MemoryKind::device);
  Kernel& k = *kernel_;
  k.cuda = device::driver().value();  // gpu_ has it
  CUkernel kernel = nullptr;
  check(k.cuda->LibraryLoadData(&k.library, kAddKernel, nullptr, nullptr, 0, nullptr, nullptr, 0), "cuLibraryLoadData");
  check(k.cuda->LibraryGetKernel(&kernel, k.library, kAddKernelName), "cuLibraryGetKernel");
  check(k.cuda->KernelGetFunction(&k.function, kernel), "cuKernelGetFunction");
  const Result<int> multiprocessors = device::attribute(0, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  check(multiprocessors.status());
  k.blocks = static_cast<unsigned>(multiprocessors.value()) * kBlocksPerMultiprocessor;
}

RooflineDevice::~RooflineDevice() = default;

void RooflineDevice::copy(char* to, const char* from, std::size_t bytes) {
  check(kernel_->cuda->MemcpyAsync(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from), bytes,
                                   static_cast<CUstream>(gpu_.stream())),
        "cuMemcpyAsync");
}

template <class Call>
double RooflineDevice::time(double seconds, const Call& call) {
  constexpr std::size_t kMostCalls = 100'000;
  for (std::size_t calls = 4;; calls *= 4) {
    gpu_.synchronize();
    const std::int64_t start = now_ns();
    for (std::size_t i = 0; i < calls; ++i) call();
    gpu_.synchronize();
    const double spent = static_cast<double>(now_ns() - start) * 1e-3;
    if (spent > seconds * 1e6 || calls > kMostCalls) return spent / static_cast<double>(calls);
  }
}

double RooflineDevice::copy_us(std::size_t bytes, double seconds) {
  return time(seconds, [&] { copy(other_.data(), buffer(0), bytes); });
}

void RooflineDevice::add(char* to, char* from, std::size_t bytes) {
  unsigned long long count = bytes / kVector;
  const auto wanted =
      static_cast<unsigned>(std::min<unsigned long long>((count + kThreads - 1) / kThreads, kernel_->blocks));
  void* parameters[] = {&to, &from, &count};
  check(kernel_->cuda->LaunchKernel(kernel_->function, std::max(wanted, 1U), 1, 1, kThreads, 1, 1, 0,
                                    static_cast<CUstream>(gpu_.stream()), parameters, nullptr),
        "cuLaunchKernel");
}

void RooflineDevice::run(HostLoop loop, std::size_t bytes) {
  const int ranks = static_cast<int>(buffers_.size());
  if (loop == HostLoop::all_reduce) {
    for (int r = 1; r < ranks; ++r) {
      copy(other_.data(), buffer(r), bytes);
      add(buffer(0), other_.data(), bytes);
    }
    for (int r = 1; r < ranks; ++r) copy(buffer(r), buffer(0), bytes);
    return;
  }
  const std::size_t share = share_of(bytes, ranks);
  for (int r = 0; r < ranks; ++r) {
    const std::size_t at = static_cast<std::size_t>(r) * share;
    for (int other = 0; other < ranks; ++other) {
      if (other == r) continue;
      if (loop == HostLoop::all_gather) {
        copy(buffer(other) + at, buffer(r) + at, share);
      } else {
        copy(other_.data(), buffer(other) + at, share);
        add(buffer(r) + at, other_.data(), share);
      }
    }
  }
}

double RooflineDevice::loop_us(HostLoop loop, std::size_t bytes, double seconds) {
  if (loop != HostLoop::all_reduce && share_of(bytes, static_cast<int>(buffers_.size())) == 0) return 0;
  return time(seconds, [&] { run(loop, bytes); });
}

#else

struct RooflineDevice::Kernel {};
RooflineDevice::RooflineDevice(std::size_t /*most*/, int /*ranks*/) : gpu_(0, false) {}
RooflineDevice::~RooflineDevice() = default;
double RooflineDevice::copy_us(std::size_t /*bytes*/, double /*seconds*/) { return 0; }
double RooflineDevice::loop_us(HostLoop /*loop*/, std::size_t /*bytes*/, double /*seconds*/) { return 0; }

#endif

}  // namespace tutti::perf
