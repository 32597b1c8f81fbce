// Device memory of peers on this machine's GPU: what cuda_ipc.* shows on the fake driver, with the real one. Everything
// is looked at by copies. Where there is no GPU the same runs on the fake driver, so that the test itself is known to
// work.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "device/memory_kind.h"
#include "tests/cuda_ipc/job.h"
#include "tutti/tutti.hpp"

namespace tutti::testing::memory_test {
namespace {

using ::testing::Each;
using transport::DeviceArena;

/// Asked in a child: a process that has used the driver must not fork.
bool machine_has_gpu() {
  static const bool has = [] {
    const pid_t pid = fork();
    if (pid == 0) _exit(device::available().ok() ? 0 : 1);
    int status = 1;
    waitpid(pid, &status, 0);
    const bool found = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    std::printf("gpu.memory: on %s\n", found ? "this machine's GPU" : "the fake driver, since there is no GPU");
    return found;
  }();
  return has;
}

std::vector<std::string> run(int ranks, const Body& body) {
  const FakeMachine fake;
  return run_processes_on(ranks, machine_has_gpu() ? nullptr : &fake, body);
}

struct Copier {
  const device::Driver& table;
  CUstream stream = nullptr;
  explicit Copier(const device::Driver& cuda) : table(cuda) {
    (void)table.StreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0);
  }
  ~Copier() { (void)table.StreamDestroy(stream); }

  bool fill(std::uint64_t at, int value, std::size_t bytes) const {
    return table.MemsetD8Async(at, static_cast<unsigned char>(value), bytes, stream) == CUDA_SUCCESS &&
           table.StreamSynchronize(stream) == CUDA_SUCCESS;
  }
  bool holds(std::uint64_t at, int value, std::size_t bytes) const {
    std::vector<unsigned char> here(bytes, 0xEE);
    if (table.MemcpyAsync(reinterpret_cast<CUdeviceptr>(here.data()), at, bytes, stream) != CUDA_SUCCESS) return false;
    if (table.StreamSynchronize(stream) != CUDA_SUCCESS) return false;
    for (const unsigned char byte : here) {
      if (byte != value) return false;
    }
    return true;
  }
  std::uint64_t word(std::uint64_t at) const {
    std::uint64_t value = 0;
    (void)table.MemcpyAsync(reinterpret_cast<CUdeviceptr>(&value), at, sizeof(value), stream);
    (void)table.StreamSynchronize(stream);
    return value;
  }
  /// Reads as a kernel does, but by copies.
  std::uint64_t resolve(const CudaIpc& links, int rank, std::uint64_t handle) const {
    const std::uint64_t entry = links.peers() + static_cast<std::uint64_t>(rank) * sizeof(DevicePeer);
    const std::uint64_t region = (handle & ~transport::kDeviceRegion) >> transport::kDeviceRegionShift;
    const std::uint64_t regions = word(entry + offsetof(DevicePeer, regions));
    return word(regions + region * sizeof(std::uint64_t)) +
           (handle & ((std::uint64_t{1} << transport::kDeviceRegionShift) - 1));
  }
};

/// Tests as cuda_ipc.processes does: shown in three calls, then read at every peer.
std::string show(Rank& rank, const Copier& copier, CudaIpc& links, std::uint64_t pointer, std::size_t bytes, int value,
                 bool plain) {
  CudaIpc::Reach reach;
  for (int call = 0; call < 3; ++call) {
    TUTTI_SAY_ERROR(links.poll());
    const auto found = links.handle_of(host(pointer), bytes);
    TUTTI_SAY_ERROR(found.status());
    reach = found.value();
    rank.barrier();
  }
  TUTTI_SAY_UNLESS(reach.plain == plain);
  rank.word(rank.rank()) = reach.handle;
  rank.barrier();
  for (int r = 0; r < rank.ranks() && !plain; ++r) {
    if (r == rank.rank()) continue;
    TUTTI_SAY_UNLESS(copier.holds(copier.resolve(links, r, rank.word(r)), value + r, bytes));
  }
  rank.barrier();
  return "";
}

TEST(GpuMemory, WindowsOfProcesses) {
  const auto said = run(3, [](Rank& rank) -> std::string {
    const Copier copier(rank.table());
    auto connected = CudaIpc::connect(rank.config(device::current_device().value()));
    TUTTI_SAY_ERROR(connected.status());
    CudaIpc& links = *connected.value();
    const std::size_t bytes = links.sizes().bytes();
    TUTTI_SAY_UNLESS(copier.holds(links.peer(rank.rank()).window, 0, bytes));
    rank.barrier();
    for (int r = 0; r < rank.ranks(); ++r) {
      const std::uint64_t place = links.peer(r).window + bytes - 256 * (1 + static_cast<std::uint64_t>(rank.rank()));
      TUTTI_SAY_UNLESS(copier.fill(place, 10 + rank.rank(), 256));
    }
    rank.barrier();
    for (int r = 0; r < rank.ranks(); ++r) {
      const std::uint64_t place = links.peer(rank.rank()).window + bytes - 256 * (1 + static_cast<std::uint64_t>(r));
      TUTTI_SAY_UNLESS(copier.holds(place, 10 + r, 256));
    }
    rank.barrier();
    return "";
  });
  EXPECT_THAT(said, Each(""));
}

TEST(GpuMemory, CallersMemoryOfEveryKind) {
  const auto said = run(2, [](Rank& rank) -> std::string {
    const Copier copier(rank.table());
    const int gpu = device::current_device().value();
    auto connected = CudaIpc::connect(rank.config(gpu));
    TUTTI_SAY_ERROR(connected.status());
    CudaIpc& links = *connected.value();

    CUdeviceptr memory = 0;
    TUTTI_SAY_UNLESS(rank.table().MemAlloc(&memory, 3 << 20) == CUDA_SUCCESS);
    TUTTI_SAY_UNLESS(copier.fill(memory, 20 + rank.rank(), 3 << 20));
    std::string said = show(rank, copier, links, memory + 12345, 100'000, 20, false);
    if (!said.empty()) return "cuMemAlloc: " + said;

    CUdeviceptr small = 0;  // allocations that share a page
    TUTTI_SAY_UNLESS(rank.table().MemAlloc(&small, 300) == CUDA_SUCCESS);
    TUTTI_SAY_UNLESS(rank.table().MemAlloc(&small, 300) == CUDA_SUCCESS);
    TUTTI_SAY_UNLESS(copier.fill(small, 30 + rank.rank(), 300));
    said = show(rank, copier, links, small + 1, 299, 30, false);
    if (!said.empty()) return "small cuMemAlloc: " + said;

    std::byte* arena = DeviceArena::of(gpu).value()->allocate(70'000).value();
    const auto at = reinterpret_cast<std::uint64_t>(arena);
    TUTTI_SAY_UNLESS(copier.holds(at, 0, 70'000));
    TUTTI_SAY_UNLESS(copier.fill(at, 40 + rank.rank(), 70'000));
    said = show(rank, copier, links, at + 512, 60'000, 40, false);
    if (!said.empty()) return "arena: " + said;

    CUdeviceptr pool = 0;
    TUTTI_SAY_UNLESS(rank.table().MemAllocAsync(&pool, 5000, copier.stream) == CUDA_SUCCESS);
    said = show(rank, copier, links, pool, 5000, 0, true);
    if (!said.empty()) return "pool: " + said;
    return "";
  });
  EXPECT_THAT(said, Each(""));
}

TEST(GpuMemory, PhysicalMemoryByDescriptors) {
  const auto said = run(2, [](Rank& rank) -> std::string {
    const Copier copier(rank.table());
    const device::Driver& cuda = rank.table();
    const int gpu = device::current_device().value();
    auto connected = CudaIpc::connect(rank.config(gpu));
    TUTTI_SAY_ERROR(connected.status());
    CUmemAllocationProp what{};
    what.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    what.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    what.location.id = gpu;
    what.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemAccessDesc access{};
    access.location = what.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    std::size_t unit = 0;
    CUdeviceptr base = 0;
    CUmemGenericAllocationHandle handle = 0;
    TUTTI_SAY_UNLESS(cuda.MemGetAllocationGranularity(&unit, &what, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS);
    TUTTI_SAY_UNLESS(cuda.MemAddressReserve(&base, 2 * unit, 0, 0, 0) == CUDA_SUCCESS);
    for (int i = 0; i < 2; ++i) {
      TUTTI_SAY_UNLESS(cuda.MemCreate(&handle, unit, &what, 0) == CUDA_SUCCESS);
      TUTTI_SAY_UNLESS(cuda.MemMap(base + static_cast<std::size_t>(i) * unit, unit, 0, handle, 0) == CUDA_SUCCESS);
      TUTTI_SAY_UNLESS(cuda.MemRelease(handle) == CUDA_SUCCESS);
    }
    for (int i = 0; i < 2; ++i) {
      TUTTI_SAY_UNLESS(cuda.MemSetAccess(base + static_cast<std::size_t>(i) * unit, unit, &access, 1) == CUDA_SUCCESS);
    }
    TUTTI_SAY_UNLESS(copier.fill(base, 60 + rank.rank(), unit) && copier.fill(base + unit, 60 + rank.rank(), unit));
    std::string said = show(rank, copier, *connected.value(), base + 77, 1000, 60, false);
    if (said.empty()) said = show(rank, copier, *connected.value(), base + unit, 1000, 60, false);
    if (said.empty()) said = show(rank, copier, *connected.value(), base + unit - 10, 20, 60, true);
    return said;
  });
  EXPECT_THAT(said, Each(""));
}

TEST(GpuMemory, AKilledPeerLeavesItsMemoryReadable) {
  const auto said = run(2, [](Rank& rank) -> std::string {
    const Copier copier(rank.table());
    auto connected = CudaIpc::connect(rank.config(device::current_device().value()));
    TUTTI_SAY_ERROR(connected.status());
    CudaIpc& links = *connected.value();
    CUdeviceptr memory = 0;
    TUTTI_SAY_UNLESS(rank.table().MemAlloc(&memory, 1 << 20) == CUDA_SUCCESS);
    TUTTI_SAY_UNLESS(copier.fill(memory, 5 + rank.rank(), 1 << 20));
    const std::string said = show(rank, copier, links, memory, 1 << 20, 5, false);
    if (!said.empty()) return said;
    if (rank.rank() == 1) {
      CUdeviceptr more = 0;
      TUTTI_SAY_UNLESS(rank.table().MemAlloc(&more, 4 << 20) == CUDA_SUCCESS);
      (void)links.handle_of(host(more), 100);
      raise(SIGKILL);
    }
    while (links.alive(1)) std::this_thread::yield();
    TUTTI_SAY_UNLESS(copier.holds(copier.resolve(links, 1, rank.word(1)), 6, 1 << 20));
    const Status status = links.poll();
    TUTTI_SAY_UNLESS(status.code() == Code::peer_died);
    return status.message();
  });
  EXPECT_THAT(said, ::testing::ElementsAre("rank 1 died while device memory was shared", "ended by signal 9"));
}

TEST(GpuMemory, KindsOfPointers) {
  const auto said = run(1, [](Rank& rank) -> std::string {
    const Copier copier(rank.table());
    const int gpu = device::current_device().value();
    void* memory = allocate(1000, Memory::device);
    TUTTI_SAY_UNLESS(device::kind_of(memory) == (device::MemoryKind{device::MemoryPlace::device, gpu}));
    TUTTI_SAY_UNLESS(copier.holds(reinterpret_cast<std::uint64_t>(memory), 0, 1000));
    deallocate(memory);
    CUdeviceptr pool = 0;
    TUTTI_SAY_UNLESS(rank.table().MemAllocAsync(&pool, 100, copier.stream) == CUDA_SUCCESS);
    TUTTI_SAY_UNLESS(device::kind_of(host(pool)).place == device::MemoryPlace::device);
    void* pinned = nullptr;
    TUTTI_SAY_UNLESS(rank.table().MemHostAlloc(&pinned, 100, CU_MEMHOSTALLOC_PORTABLE) == CUDA_SUCCESS);
    TUTTI_SAY_UNLESS(device::kind_of(pinned).place == device::MemoryPlace::pinned);
    int word = 0;
    TUTTI_SAY_UNLESS(device::kind_of(&word) == device::MemoryKind{});
    TUTTI_SAY_UNLESS(rank.table().MemFreeHost(pinned) == CUDA_SUCCESS);
    return "";
  });
  EXPECT_THAT(said, Each(""));
}

}  // namespace
}  // namespace tutti::testing::memory_test
