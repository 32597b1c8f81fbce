// Device memory between ranks that are processes of one host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cuda_ipc/job.h"

namespace tutti::testing::processes_test {
namespace {

using ::testing::Each;
using transport::DeviceArena;

/// All ranks show `pointer`; after a few calls of all it is known, and read at every peer. The value: what rank r's
/// memory is full of, or -1 where it must stay plain.
std::string show(Rank& rank, CudaIpc& links, const void* pointer, std::size_t bytes,
                 const std::function<int(int)>& value) {
  CudaIpc::Reach reach;
  for (int call = 0; call < 3; ++call) {
    TUTTI_SAY_ERROR(links.poll());
    const auto found = links.handle_of(pointer, bytes);
    TUTTI_SAY_ERROR(found.status());
    reach = found.value();
    rank.barrier();
  }
  TUTTI_SAY_UNLESS(reach.plain == (value(rank.rank()) < 0));
  rank.word(rank.rank()) = reach.plain ? 0 : reach.handle;
  rank.barrier();
  for (int r = 0; r < rank.ranks(); ++r) {
    if (r == rank.rank() || value(r) < 0) continue;
    const unsigned char* there = resolve(links, r, rank.word(r));
    TUTTI_SAY_UNLESS(there != nullptr);
    TUTTI_SAY_UNLESS(there[0] == value(r) && there[bytes - 1] == value(r));
  }
  rank.barrier();
  return "";
}

std::string windows(Rank& rank, int device) {
  auto connected = CudaIpc::connect(rank.config(device));
  TUTTI_SAY_ERROR(connected.status());
  CudaIpc& links = *connected.value();
  const int me = rank.rank();
  const unsigned char* own = bytes_at(links.peer(me).window);
  for (std::size_t i = 0; i < links.sizes().bytes(); ++i) TUTTI_SAY_UNLESS(own[i] == 0);
  rank.barrier();
  for (int r = 0; r < rank.ranks(); ++r) {
    TUTTI_SAY_UNLESS(links.peer(r).same_process == (r == me));
    bytes_at(links.peer(r).window)[links.sizes().bytes() - 1 - static_cast<std::size_t>(me)] =
        static_cast<unsigned char>(10 + me);
  }
  rank.barrier();
  for (int r = 0; r < rank.ranks(); ++r) {
    TUTTI_SAY_UNLESS(own[links.sizes().bytes() - 1 - static_cast<std::size_t>(r)] == 10 + r);
  }
  rank.barrier();
  return "";
}

TEST(CudaIpcProcesses, Windows) {
  EXPECT_THAT(run_processes(4, {}, [](Rank& rank) { return windows(rank, 0); }), Each(""));
}

TEST(CudaIpcProcesses, WindowsOnTwoGpus) {
  EXPECT_THAT(run_processes(4, {.devices = 2}, [](Rank& rank) { return windows(rank, rank.rank() % 2); }), Each(""));
}

TEST(CudaIpcProcesses, WindowsByDescriptorsWhereHandlesDoNotServe) {
  EXPECT_THAT(run_processes(3, {.ipc = false}, [](Rank& rank) { return windows(rank, 0); }), Each(""));
}

TEST(CudaIpcProcesses, NoWayToShareIsOneSentence) {
  const auto said = run_processes(2, {.ipc = false}, [](Rank& rank) -> std::string {
    rank.cuda().fail("cuMemCreate", CUDA_ERROR_NOT_SUPPORTED, 1, 100);
    return CudaIpc::connect(rank.config(0)).status().message();
  });
  EXPECT_THAT(said, Each("rank 0: the device memory of rank 1 cannot be mapped: the memory cannot be handed to other "
                         "processes"));
}

TEST(CudaIpcProcesses, ArenaIsKnownFromTheBeginning) {
  for (const bool ipc : {true, false}) {
    const auto said = run_processes(3, {.ipc = ipc}, [](Rank& rank) -> std::string {
      DeviceArena* arena = DeviceArena::of(0).value();
      std::byte* before = arena->allocate(5000).value();
      std::memset(before, 1 + rank.rank(), 5000);
      auto connected = CudaIpc::connect(rank.config(0));
      TUTTI_SAY_ERROR(connected.status());
      CudaIpc& links = *connected.value();
      TUTTI_SAY_UNLESS(!links.handle_of(before + 100, 100).value().plain);  // in the very first call
      TUTTI_SAY_ERROR(links.poll());
      std::string said = show(rank, links, before + 100, 100, [](int r) { return 1 + r; });
      if (!said.empty()) return said;
      // A segment that comes later.
      std::byte* later = arena->allocate(DeviceArena::kSegment + 1).value();
      std::memset(later, 101 + rank.rank(), DeviceArena::kSegment);
      TUTTI_SAY_UNLESS(links.handle_of(later, 10).value().plain);
      return show(rank, links, later + 10, 4000, [](int r) { return 101 + r; });
    });
    EXPECT_THAT(said, Each(""));
  }
}

TEST(CudaIpcProcesses, AnyOtherAllocationAtAnyOffset) {
  const auto said = run_processes(3, {}, [](Rank& rank) -> std::string {
    auto connected = CudaIpc::connect(rank.config(0));
    TUTTI_SAY_ERROR(connected.status());
    CudaIpc& links = *connected.value();
    const CUdeviceptr memory = rank.allocate(1 << 20, 50 + rank.rank());
    const auto value = [](int r) { return 50 + r; };
    TUTTI_SAY_UNLESS(links.handle_of(host(memory + 12345), 1000).value().plain);  // no peer knows it yet
    rank.barrier();
    std::string said = show(rank, links, host(memory + 12345), 1000, value);
    if (said.empty()) said = show(rank, links, host(memory + (1 << 20) - 1), 1, value);
    TUTTI_SAY_UNLESS(links.regions() == 1);
    TUTTI_SAY_UNLESS(rank.cuda().calls("cuIpcOpenMemHandle") == 4);  // two windows, two regions: each once
    return said;
  });
  EXPECT_THAT(said, Each(""));
}

TEST(CudaIpcProcesses, FreedAndAllocatedAnew) {
  const auto said = run_processes(2, {}, [](Rank& rank) -> std::string {
    auto connected = CudaIpc::connect(rank.config(0));
    TUTTI_SAY_ERROR(connected.status());
    CudaIpc& links = *connected.value();
    CUdeviceptr memory = rank.allocate(8192, 1);
    std::string said = show(rank, links, host(memory), 8192, [](int) { return 1; });
    if (!said.empty()) return said;
    const CUdeviceptr first = memory;
    for (int tries = 0; tries < 20; ++tries) {
      TUTTI_SAY_UNLESS(rank.table().MemFree(memory) == CUDA_SUCCESS);
      memory = rank.allocate(8192, 2);
      if (memory == first) break;
    }
    TUTTI_SAY_UNLESS(memory == first);  // the kernel gives the same address again
    TUTTI_SAY_UNLESS(links.handle_of(host(memory), 8192).value().plain);
    rank.barrier();
    said = show(rank, links, host(memory), 8192, [](int) { return 2; });
    if (!said.empty()) return said;
    TUTTI_SAY_UNLESS(links.regions() == 1);
    TUTTI_SAY_UNLESS(rank.cuda().mapped() == 2);  // the window, and the region: the old one is closed
    return "";
  });
  EXPECT_THAT(said, Each(""));
}

TEST(CudaIpcProcesses, FreedMemoryIsLetGoOf) {
  const auto said = run_processes(2, {}, [](Rank& rank) -> std::string {
    auto connected = CudaIpc::connect(rank.config(0));
    TUTTI_SAY_ERROR(connected.status());
    CudaIpc& links = *connected.value();
    const CUdeviceptr first = rank.allocate(8192, 1);
    const CUdeviceptr second = rank.allocate(1 << 20, 1);
    for (const CUdeviceptr memory : {first, second}) {
      const std::string said = show(rank, links, host(memory), 8192, [](int) { return 1; });
      if (!said.empty()) return said;
    }
    TUTTI_SAY_UNLESS(rank.cuda().mapped() == 3);
    TUTTI_SAY_UNLESS(rank.table().MemFree(first) == CUDA_SUCCESS);
    for (int call = 0; call < 100; ++call) {
      TUTTI_SAY_ERROR(links.poll());
      rank.barrier();
    }
    TUTTI_SAY_UNLESS(rank.cuda().mapped() == 2 && links.regions() == 1);  // by calls alone
    // And at once when something new is announced.
    TUTTI_SAY_UNLESS(rank.table().MemFree(second) == CUDA_SUCCESS);
    const CUdeviceptr third = rank.allocate(2 << 20, 3);
    const std::string said = show(rank, links, host(third), 8192, [](int) { return 3; });
    TUTTI_SAY_UNLESS(said.empty());
    TUTTI_SAY_UNLESS(rank.cuda().mapped() == 2 && links.regions() == 1);
    return "";
  });
  EXPECT_THAT(said, Each(""));
}

TEST(CudaIpcProcesses, PoolMemoryIsPlain) {
  const auto said = run_processes(2, {}, [](Rank& rank) -> std::string {
    auto connected = CudaIpc::connect(rank.config(0));
    TUTTI_SAY_ERROR(connected.status());
    CUdeviceptr pool = 0;
    TUTTI_SAY_UNLESS(rank.table().MemAllocAsync(&pool, 1000, nullptr) == CUDA_SUCCESS);
    const std::string said = show(rank, *connected.value(), host(pool), 1000, [](int) { return -1; });
    TUTTI_SAY_UNLESS(connected.value()->regions() == 0);
    return said;
  });
  EXPECT_THAT(said, Each(""));
}

/// Two pieces of physical memory behind each other, as allocators with growing segments make them.
CUdeviceptr map_two(const device::Driver& table, bool exportable, std::size_t* unit) {
  CUmemAllocationProp what{};
  what.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  what.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  what.requestedHandleTypes = exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
  CUmemAccessDesc access{};
  access.location = what.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CUdeviceptr base = 0;
  if (table.MemGetAllocationGranularity(unit, &what, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS) return 0;
  if (table.MemAddressReserve(&base, 2 * *unit, 0, 0, 0) != CUDA_SUCCESS) return 0;
  for (int i = 0; i < 2; ++i) {
    CUmemGenericAllocationHandle handle = 0;
    const CUdeviceptr at = base + static_cast<std::size_t>(i) * *unit;
    if (table.MemCreate(&handle, *unit, &what, 0) != CUDA_SUCCESS) return 0;
    if (table.MemMap(at, *unit, 0, handle, 0) != CUDA_SUCCESS) return 0;
    if (table.MemSetAccess(at, *unit, &access, 1) != CUDA_SUCCESS) return 0;
    if (table.MemRelease(handle) != CUDA_SUCCESS) return 0;
  }
  return base;
}

TEST(CudaIpcProcesses, PhysicalMemoryGoesByDescriptors) {
  const auto said = run_processes(3, {}, [](Rank& rank) -> std::string {
    auto connected = CudaIpc::connect(rank.config(0));
    TUTTI_SAY_ERROR(connected.status());
    CudaIpc& links = *connected.value();
    std::size_t unit = 0;
    const CUdeviceptr memory = map_two(rank.table(), true, &unit);
    TUTTI_SAY_UNLESS(memory != 0);
    std::memset(bytes_at(memory), 60 + rank.rank(), 2 * unit);
    const auto value = [](int r) { return 60 + r; };
    std::string said = show(rank, links, host(memory + 100), 1000, value);
    if (said.empty()) said = show(rank, links, host(memory + unit + 7), 1000, value);
    // What goes over the border of the two is not one piece in peers' address spaces.
    if (said.empty()) said = show(rank, links, host(memory + unit - 10), 20, [](int) { return -1; });
    if (!said.empty()) return said;
    const CUdeviceptr closed = map_two(rank.table(), false, &unit);  // made without a type of handle
    return show(rank, links, host(closed), 20, [](int) { return -1; });
  });
  EXPECT_THAT(said, Each(""));
}

TEST(CudaIpcProcesses, APeerThatCannotMapItLeavesItPlain) {
  const auto said = run_processes(3, {}, [](Rank& rank) -> std::string {
    auto connected = CudaIpc::connect(rank.config(0));
    TUTTI_SAY_ERROR(connected.status());
    CudaIpc& links = *connected.value();
    const CUdeviceptr memory = rank.allocate(4096, 1);
    if (rank.rank() == 0) (void)links.handle_of(host(memory), 4096);
    rank.barrier();
    if (rank.rank() == 2) {
      rank.cuda().fail("cuIpcOpenMemHandle", CUDA_ERROR_MAP_FAILED);  // of rank 0's, which alone is announced
      TUTTI_SAY_ERROR(links.poll());
    }
    rank.barrier();
    std::string said = show(rank, links, host(memory), 4096, [](int r) { return r == 0 ? -1 : 1; });
    if (!said.empty()) return said;
    const CUdeviceptr more = rank.allocate(4096, 2);  // another one goes well
    return show(rank, links, host(more), 4096, [](int) { return 2; });
  });
  EXPECT_THAT(said, Each(""));
}

TEST(CudaIpcProcesses, PeersThatMakeNoCallsDelayNoRank) {
  const auto said = run_processes(2, {}, [](Rank& rank) -> std::string {
    auto connected = CudaIpc::connect(rank.config(0));
    TUTTI_SAY_ERROR(connected.status());
    CudaIpc& links = *connected.value();
    std::vector<CUdeviceptr> all;
    if (rank.rank() == 0) {
      // More than the ring of the log holds: what finds no room is plain, and announced later.
      for (std::size_t i = 0; i < 100; ++i) {
        all.push_back(rank.allocate(64, static_cast<int>(i)));
        TUTTI_SAY_UNLESS(links.handle_of(host(all.back()), 64).value().plain);
      }
      // Nor is there room for taking one back: its number is lost, and that is all.
      const CUdeviceptr first = all[0];
      TUTTI_SAY_UNLESS(rank.table().MemFree(first) == CUDA_SUCCESS);
      all[0] = rank.allocate(64, 0);
      TUTTI_SAY_UNLESS(all[0] == first && links.handle_of(host(first), 64).value().plain);
    }
    rank.barrier();
    TUTTI_SAY_ERROR(links.poll());
    rank.barrier();
    if (rank.rank() == 0) {
      int known = 0;
      for (const CUdeviceptr memory : all) known += links.handle_of(host(memory), 64).value().plain ? 0 : 1;
      TUTTI_SAY_UNLESS(known == static_cast<int>(transport::kRegionLogRing) - 1);
    }
    rank.barrier();
    TUTTI_SAY_ERROR(links.poll());
    rank.barrier();
    for (const CUdeviceptr memory : all) TUTTI_SAY_UNLESS(!links.handle_of(host(memory), 64).value().plain);
    return "";
  });
  EXPECT_THAT(said, Each(""));
}

TEST(CudaIpcProcesses, RegionsEnd) {
  const auto said = run_processes(2, {}, [](Rank& rank) -> std::string {
    auto connected = CudaIpc::connect(rank.config(0));
    TUTTI_SAY_ERROR(connected.status());
    CudaIpc& links = *connected.value();
    int plain = 0;
    for (int i = 0; i < transport::kRegions + 10; ++i) {
      const CUdeviceptr memory = rank.allocate(64, 1);
      if (rank.rank() == 0) (void)links.handle_of(host(memory), 64);
      rank.barrier();
      TUTTI_SAY_ERROR(links.poll());
      rank.barrier();
      if (rank.rank() == 0 && links.handle_of(host(memory), 64).value().plain) ++plain;
    }
    TUTTI_SAY_UNLESS(plain == (rank.rank() == 0 ? 10 : 0));
    return "";
  });
  EXPECT_THAT(said, Each(""));
}

TEST(CudaIpcProcesses, CaptureIsNotDisturbed) {
  const auto said = run_processes(2, {}, [](Rank& rank) -> std::string {
    auto connected = CudaIpc::connect(rank.config(0));
    TUTTI_SAY_ERROR(connected.status());
    const CUdeviceptr memory = rank.allocate(64, 3);
    CUstream stream = nullptr;
    CUgraph graph = nullptr;
    TUTTI_SAY_UNLESS(rank.table().StreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
    TUTTI_SAY_UNLESS(rank.table().StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    const std::string said = show(rank, *connected.value(), host(memory), 64, [](int) { return 3; });
    TUTTI_SAY_UNLESS(rank.table().StreamEndCapture(stream, &graph) == CUDA_SUCCESS);
    return said;
  });
  EXPECT_THAT(said, Each(""));
}

TEST(CudaIpcProcesses, WindowsStayUntilAllHaveLeft) {
  const auto said = run_processes(2, {}, [](Rank& rank) -> std::string {
    auto connected = CudaIpc::connect(rank.config(0));
    TUTTI_SAY_ERROR(connected.status());
    const std::size_t window = connected.value()->sizes().bytes();
    if (rank.rank() == 0) connected.value().reset();
    rank.barrier();
    if (rank.rank() == 0) TUTTI_SAY_UNLESS(rank.cuda().allocated(0) == window);
    if (rank.rank() == 1) {
      *bytes_at(connected.value()->peer(0).window) = 1;  // it is still there
      connected.value().reset();
    }
    rank.barrier();
    CudaIpc::sweep();
    TUTTI_SAY_UNLESS(rank.cuda().allocated(0) == 0);
    TUTTI_SAY_UNLESS(rank.cuda().mapped() == 0);
    return "";
  });
  EXPECT_THAT(said, Each(""));
}

TEST(CudaIpcProcesses, AKilledPeerIsAnErrorAndNoCrash) {
  const auto said = run_processes(3, {}, [](Rank& rank) -> std::string {
    auto connected = CudaIpc::connect(rank.config(0));
    TUTTI_SAY_ERROR(connected.status());
    CudaIpc& links = *connected.value();
    const CUdeviceptr memory = rank.allocate(4096, 5);
    const std::string said = show(rank, links, host(memory), 4096, [](int) { return 5; });
    if (!said.empty()) return said;
    const std::uint64_t handle = rank.word(1);
    if (rank.rank() == 1) {
      (void)links.handle_of(host(rank.allocate(4096, 6)), 4096);  // announced, and never to be opened
      raise(SIGKILL);
    }
    while (links.alive(1)) std::this_thread::yield();
    TUTTI_SAY_UNLESS(resolve(links, 1, handle)[4095] == 5);  // what was mapped can still be read
    const Status status = links.poll();
    TUTTI_SAY_UNLESS(status.code() == Code::peer_died);
    TUTTI_SAY_UNLESS(status.message() == "rank 1 died while device memory was shared");
    connected.value().reset();  // the others' windows and their own, with only each other to wait for
    if (rank.rank() == 0) {
      while (rank.alive(2)) std::this_thread::yield();
      CudaIpc::sweep();
      TUTTI_SAY_UNLESS(rank.cuda().allocated(0) == 4096);  // the test's own
    }
    return "";
  });
  EXPECT_THAT(said, ::testing::ElementsAre("", "ended by signal 9", ""));
}

TEST(CudaIpcProcesses, APeerKilledWhileConnecting) {
  for (const bool ipc : {true, false}) {
    const auto said = run_processes(2, {.ipc = ipc}, [](Rank& rank) -> std::string {
      CudaIpc::Config config = rank.config(0);
      if (rank.rank() == 1) {
        config.exchange = [&rank](const transport::Words& mine) {
          auto all = rank.exchange(mine.front());
          raise(SIGKILL);
          return all;
        };
      } else {
        config.exchange = [&rank](const transport::Words& mine) {
          auto all = rank.exchange(mine.front());
          while (rank.alive(1)) std::this_thread::yield();
          return all;
        };
      }
      const Status status = CudaIpc::connect(std::move(config)).status();
      TUTTI_SAY_UNLESS(status.code() == Code::peer_died);
      return status.message();
    });
    EXPECT_THAT(said, ::testing::ElementsAre("rank 1 died", "ended by signal 9"));
  }
}

}  // namespace
}  // namespace tutti::testing::processes_test
