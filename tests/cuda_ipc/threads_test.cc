// Device memory between ranks that are threads of one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>

#include "tests/cuda_ipc/job.h"

namespace tutti::testing::threads_test {
namespace {

using ::testing::Each;

TEST(CudaIpcThreads, OneGpuShowsEverything) {
  FakeDriver cuda;
  const auto said = run_threads(4, cuda, 1, [](Rank& rank) -> std::string {
    auto connected = CudaIpc::connect(rank.config(0));
    TUTTI_SAY_ERROR(connected.status());
    CudaIpc& links = *connected.value();
    for (int r = 0; r < rank.ranks(); ++r) {
      TUTTI_SAY_UNLESS(links.peer(r).same_process && links.peer(r).same_gpu);
      bytes_at(links.peer(r).window)[rank.rank()] = static_cast<unsigned char>(10 + rank.rank());
    }
    // Any pointer will do: memory of the driver, of a pool, managed.
    const CUdeviceptr memory = rank.allocate(100, rank.rank());
    CUdeviceptr pool = 0;
    TUTTI_SAY_UNLESS(rank.table().MemAllocAsync(&pool, 100, nullptr) == CUDA_SUCCESS);
    for (const CUdeviceptr p : {memory, pool}) {
      const auto reach = links.handle_of(host(p + 50), 10);
      TUTTI_SAY_ERROR(reach.status());
      TUTTI_SAY_UNLESS(!reach.value().plain && reach.value().handle == p + 50);
    }
    rank.word(rank.rank()) = memory + 50;
    rank.barrier();
    for (int r = 0; r < rank.ranks(); ++r) {
      TUTTI_SAY_UNLESS(bytes_at(links.peer(rank.rank()).window)[r] == 10 + r);
      TUTTI_SAY_UNLESS(*resolve(links, r, rank.word(r)) == r);
    }
    TUTTI_SAY_UNLESS(links.regions() == 0);
    rank.barrier();
    TUTTI_SAY_UNLESS(rank.table().MemFree(memory) == CUDA_SUCCESS);
    TUTTI_SAY_UNLESS(rank.table().MemFreeAsync(pool, nullptr) == CUDA_SUCCESS);
    return "";
  });
  EXPECT_THAT(said, Each(""));
  EXPECT_EQ(cuda.table().CtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuda.allocated(0), 0U);  // windows too
}

TEST(CudaIpcThreads, TwoGpusReachEachOther) {
  FakeDriver cuda({.devices = 2});
  const auto said = run_threads(4, cuda, 2, [](Rank& rank) -> std::string {
    const int gpu = rank.rank() % 2;
    auto connected = CudaIpc::connect(rank.config(gpu));
    TUTTI_SAY_ERROR(connected.status());
    CudaIpc& links = *connected.value();
    TUTTI_SAY_UNLESS(links.peer(1 - gpu).same_process && !links.peer(1 - gpu).same_gpu);
    const CUdeviceptr memory = rank.allocate(100, rank.rank());
    CUdeviceptr pool = 0;
    TUTTI_SAY_UNLESS(rank.table().MemAllocAsync(&pool, 100, nullptr) == CUDA_SUCCESS);
    TUTTI_SAY_UNLESS(!links.handle_of(host(memory), 100).value().plain);
    TUTTI_SAY_UNLESS(links.handle_of(host(pool), 100).value().plain);  // the other GPU may not look into a pool
    std::byte* arena = transport::DeviceArena::of(gpu).value()->allocate(64).value();
    TUTTI_SAY_UNLESS(!links.handle_of(arena, 64).value().plain);
    // The other GPU's memory is no buffer of this rank's.
    rank.word(rank.rank()) = memory;
    rank.barrier();
    const auto other = links.handle_of(host(rank.word(1 - gpu)), 100);
    TUTTI_SAY_UNLESS(other.status().code() == Code::invalid_argument);
    const std::string words = "is memory of GPU " + std::to_string(1 - gpu) + "; expected memory of GPU " +
                              std::to_string(gpu) + ", the communicator's";
    TUTTI_SAY_UNLESS(other.status().message().find(words) != std::string::npos);
    rank.barrier();
    return "";
  });
  EXPECT_THAT(said, Each(""));
  EXPECT_TRUE(cuda.peer_enabled(0, 1));
  EXPECT_TRUE(cuda.peer_enabled(1, 0));
}

TEST(CudaIpcThreads, GpusThatDoNotReachEachOther) {
  FakeDriver cuda({.devices = 2, .peer_access = false});
  const auto said = run_threads(2, cuda, 2, [](Rank& rank) -> std::string {
    return CudaIpc::connect(rank.config(rank.rank() % 2)).status().message();
  });
  EXPECT_THAT(said,
              Each("rank 0: GPU 0 (Fake GPU) cannot reach the memory of GPU 1 (Fake GPU), which is that of rank 1"));
  EXPECT_EQ(cuda.allocated(0) + cuda.allocated(1), 0U);
}

TEST(CudaIpcThreads, HostMemoryIsRefused) {
  FakeDriver cuda;
  const auto said = run_threads(2, cuda, 1, [](Rank& rank) -> std::string {
    auto connected = CudaIpc::connect(rank.config(0));
    TUTTI_SAY_ERROR(connected.status());
    int word = 0;
    const auto reach = connected.value()->handle_of(&word, sizeof(word));
    TUTTI_SAY_UNLESS(reach.status().code() == Code::invalid_argument);
    TUTTI_SAY_UNLESS(connected.value()->handle_of(nullptr, 0).ok());  // a rank without a part in the call
    return "";
  });
  EXPECT_THAT(said, Each(""));
}

TEST(CudaIpcThreads, MemoryThatIsShortIsOneSentenceOnAllRanks) {
  FakeDriver cuda;
  cuda.fail("cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY, 3);  // each rank makes a window and a table
  const auto said = run_threads(2, cuda, 1, [](Rank& rank) -> std::string {
    const Status status = CudaIpc::connect(rank.config(0)).status();
    return status.code() == Code::memory_limit ? status.message() : "another code: " + status.message();
  });
  EXPECT_EQ(said[0], said[1]);
  EXPECT_THAT(said[0], ::testing::ContainsRegex("^rank [01]: cuMemAlloc failed on GPU 0 .*CUDA_ERROR_OUT_OF_MEMORY"));
  EXPECT_EQ(cuda.allocated(0), 0U);
}

}  // namespace
}  // namespace tutti::testing::threads_test
