#if defined(TUTTI_HAS_CUDA)

#include "collectives/executor/cuda/loaded_kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <span>
#include <utility>

#include "collectives/executor/cuda/executor.h"

namespace tutti::executor::cuda {

Result<std::shared_ptr<const Kernels>> Kernels::get(int device) {
  static std::mutex mutex;
  static std::map<std::pair<std::uint64_t, int>, std::weak_ptr<const Kernels>> all;  // by the driver's generation, too
  const std::lock_guard lock(mutex);
  std::weak_ptr<const Kernels>& loaded = all[{device::driver_generation(), device}];
  if (auto kernels = loaded.lock()) return kernels;
  std::shared_ptr<Kernels> kernels(new Kernels());
  TUTTI_TRY(kernels->load(device));
  loaded = kernels;
  return std::shared_ptr<const Kernels>(std::move(kernels));
}

Status Kernels::load(int device) {
  TUTTI_ASSIGN(const device::Driver* cuda, device::driver());
  TUTTI_ASSIGN(const auto context, device::enter(device));
  const device::UncapturedCalls uncaptured(*cuda);
  where_ = device::name_of(device);
  const std::span<const std::byte> image = kernel_image();
  // A driver refuses this text; the fake one of the tests has its kernels elsewhere.
  static constexpr char kNone[] = "no kernels";
  const void* data = image.empty() ? static_cast<const void*>(kNone) : image.data();
  const CUresult result = cuda->LibraryLoadData(&library_, data, nullptr, nullptr, 0, nullptr, nullptr, 0);
  if (result != CUDA_SUCCESS && image.empty()) {
    return unsupported("this build of Tutti has no kernels for device memory: no nvcc was found when it was built");
  }
  TUTTI_TRY(device::check(result, "cuLibraryLoadData", where_));
  // Asking for the occupancy also makes the driver load each kernel now. Later it might have to wait for kernels that
  // run, and they for this one.
  int of_each = std::numeric_limits<int>::max();
  for (int k = 0; k < kKernels; ++k) {
    CUkernel kernel = nullptr;
    TUTTI_TRY(device::check(cuda->LibraryGetKernel(&kernel, library_, kKernelNames[k]), "cuLibraryGetKernel", where_));
    TUTTI_TRY(device::check(cuda->KernelGetFunction(&functions_[k], kernel), "cuKernelGetFunction", where_));
    int blocks = 0;
    TUTTI_TRY(device::check(
        cuda->OccupancyMaxActiveBlocksPerMultiprocessor(&blocks, functions_[k], static_cast<int>(kThreadsOfBlock), 0),
        "cuOccupancyMaxActiveBlocksPerMultiprocessor", where_));
    of_each = std::min(of_each, blocks);
  }
  TUTTI_ASSIGN(const int multiprocessors, device::attribute(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
  capacity_ = of_each * multiprocessors;
  return {};
}

Kernels::~Kernels() {
  const auto cuda = device::driver();
  if (cuda.ok() && library_ != nullptr) cuda.value()->LibraryUnload(library_);
}

namespace {

struct Reserved {
  std::mutex mutex;
  std::map<std::string, int> blocks;  // by the GPU's uuid and the driver's generation
};

Reserved& reserved() {
  static Reserved reserved;
  return reserved;
}

}  // namespace

Result<int> BlockBudget::capacity(int device) {
  TUTTI_ASSIGN(const std::shared_ptr<const Kernels> kernels, Kernels::get(device));
  return kernels->capacity();
}

Result<BlockBudget> BlockBudget::reserve(int device, int ranks, int processes) {
  TUTTI_ASSIGN(const int whole, BlockBudget::capacity(device));
  const int capacity = whole / processes;
  TUTTI_ASSIGN(const CUuuid uuid, device::uuid_of(device));
  BlockBudget budget;
  budget.gpu_ = std::string(uuid.bytes, sizeof(uuid.bytes)) + std::to_string(device::driver_generation());
  budget.ranks_ = ranks;
  Reserved& all = reserved();
  const std::lock_guard lock(all.mutex);
  const int free = capacity - all.blocks[budget.gpu_];
  budget.of_each_ = std::max(free * 3 / 4 / ranks, free / ranks > 0 ? 1 : 0);
  if (budget.of_each_ == 0) {
    return unsupported(
        fmt::format("{} has no room for the kernels of one more communicator of {} ranks on it: it holds "
                    "{} blocks{}, and {} of them are taken by communicators that exist",
                    device::name_of(device), ranks, capacity,
                    processes > 1 ? fmt::format(" for each of {} processes", processes) : "", all.blocks[budget.gpu_]));
  }
  all.blocks[budget.gpu_] += budget.of_each_ * ranks;
  return budget;
}

BlockBudget& BlockBudget::operator=(BlockBudget&& other) noexcept {
  if (this == &other) return *this;
  release();
  gpu_ = std::move(other.gpu_);
  ranks_ = std::exchange(other.ranks_, 0);
  of_each_ = std::exchange(other.of_each_, 0);
  return *this;
}

void BlockBudget::keep(int blocks_of_each) {
  if (ranks_ == 0 || blocks_of_each >= of_each_) return;
  const std::lock_guard lock(reserved().mutex);
  reserved().blocks[gpu_] -= (of_each_ - blocks_of_each) * ranks_;
  of_each_ = blocks_of_each;
}

void BlockBudget::release() {
  if (ranks_ == 0) return;
  const std::lock_guard lock(reserved().mutex);
  reserved().blocks[gpu_] -= of_each_ * ranks_;
  ranks_ = 0;
}

}  // namespace tutti::executor::cuda

#endif  // TUTTI_HAS_CUDA
