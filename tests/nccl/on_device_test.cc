// NCCL's calls on device memory, with streams, on the fake driver. The library's objects are in this program.
#include <gmock/gmock.h>

#include <atomic>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/memory_kind.h"
#include "nccl/call_config.h"
#include "tests/device/device_buffers.h"
#include "tests/nccl/ranks.h"
#include "tests/support/fake_cuda/walkers.h"

extern "C" {  // of fake_cuda.cc: what nccl/device.cc takes for the thread's current one, and for its memory
void fake_set_device(int device);
extern bool (*fake_is_on_device)(std::uintptr_t pointer);
}

namespace tutti::nccl::testing {
namespace {

using tutti::testing::DeviceBuffers;
using tutti::testing::FakeDriver;
using tutti::testing::must_cuda;

constexpr std::size_t kCount = 1000;

/// A rank's buffers, of `blocks` x kCount elements each, and its stream.
struct Rank {
  Rank(int device, int blocks) : memory(device) {
    const std::size_t bytes = static_cast<std::size_t>(blocks) * kCount * sizeof(float);
    send = reinterpret_cast<float*>(memory.allocate(bytes));
    recv = reinterpret_cast<float*>(memory.allocate(bytes));
  }
  cudaStream_t stream() const { return reinterpret_cast<cudaStream_t>(memory.stream()); }
  void write(const std::vector<float>& values) {
    memory.write(reinterpret_cast<std::byte*>(send), std::as_bytes(std::span(values)));
  }
  std::vector<float> read(std::size_t count) {
    const std::vector<std::byte> bytes = memory.read(reinterpret_cast<std::byte*>(recv), count * sizeof(float));
    std::vector<float> values(count);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  DeviceBuffers memory;
  float* send;
  float* recv;
};

std::vector<float> filled(float value, std::size_t count = kCount) { return std::vector<float>(count, value); }

/// The first test, since its ranks are forks: the library has not been used before.
TEST(OnDevice, ASuspendedOneHasNoDeviceMemory) {
  const std::vector<Outcome> outcomes = on_processes(2, [](int rank, Shared& shared) -> std::string {
    FakeDriver cuda;
    tutti::testing::add_walkers(cuda);
    ncclComm_t comm = nullptr;
    must(ncclCommInitRank(&comm, 2, meet(shared, rank), rank));
    // The rank that leaves last waits for no rank. Which rank that is changes from round to round.
    for (int round = 0; round < 6; ++round) {
      if (cuda.allocated(0) == 0) throw std::runtime_error("it takes no memory of the device");
      must(ncclCommSuspend(comm, kSuspendMemory));
      if (cuda.allocated(0) != 0) throw std::runtime_error(std::to_string(cuda.allocated(0)) + " bytes are kept");
      must(ncclCommResume(comm));
    }
    must(ncclCommSuspend(comm, kSuspendMemory));
    must(ncclCommDestroy(comm));
    return {};
  });
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.error, "");
}

TEST(OnDevice, OneThreadDrivesAllRanks) {
  FakeDriver cuda;
  tutti::testing::add_walkers(cuda);
  constexpr int kRanks = 3;
  const std::vector<ncclComm_t> comms = init_all(kRanks);
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int r = 0; r < kRanks; ++r) {
    ranks.push_back(std::make_unique<Rank>(0, kRanks));
    ranks.back()->write(filled(static_cast<float>(r + 1), kRanks * kCount));
  }
  const auto in_a_group = [&](auto&& call) {
    EXPECT_DONE(ncclGroupStart());
    for (int r = 0; r < kRanks; ++r) call(r, *ranks[static_cast<std::size_t>(r)], comms[static_cast<std::size_t>(r)]);
    EXPECT_DONE(ncclGroupEnd());
  };
  in_a_group([](int, Rank& own, ncclComm_t comm) {
    EXPECT_DONE(ncclAllReduce(own.send, own.recv, kCount, ncclFloat32, ncclSum, comm, own.stream()));
  });
  for (const auto& rank : ranks) EXPECT_EQ(rank->read(kCount), filled(6));
  in_a_group([](int, Rank& own, ncclComm_t comm) {
    EXPECT_DONE(ncclReduceScatter(own.send, own.recv, kCount, ncclFloat32, ncclAvg, comm, own.stream()));
  });
  for (const auto& rank : ranks) EXPECT_EQ(rank->read(kCount), filled(2));
  in_a_group([](int r, Rank& own, ncclComm_t comm) {  // a ring of messages, after a sum
    EXPECT_DONE(ncclRecv(own.recv, kCount, ncclFloat32, (r + kRanks - 1) % kRanks, comm, own.stream()));
    EXPECT_DONE(ncclSend(own.send, kCount, ncclFloat32, (r + 1) % kRanks, comm, own.stream()));
    EXPECT_DONE(ncclAllReduce(own.send, own.send, kCount, ncclFloat32, ncclMax, comm, own.stream()));
  });
  for (const auto& rank : ranks) EXPECT_EQ(rank->read(kCount), filled(3));
  for (const ncclComm_t comm : comms) EXPECT_DONE(ncclCommDestroy(comm));
}

TEST(OnDevice, ThreadsThatMeetByAnId) {
  FakeDriver cuda({.devices = 2});
  tutti::testing::add_walkers(cuda);
  ncclUniqueId id;
  EXPECT_DONE(ncclGetUniqueId(&id));
  on_threads(2, [&](int rank) {
    Rank own(rank, 1);
    const auto context = device::enter(rank);
    fake_set_device(rank);
    ncclComm_t comm = nullptr;
    EXPECT_DONE(ncclCommInitRank(&comm, 2, id, rank));
    own.write(filled(static_cast<float>(rank + 1)));
    EXPECT_DONE(ncclAllReduce(own.send, own.recv, kCount, ncclFloat32, ncclProd, comm, own.stream()));
    EXPECT_EQ(own.read(kCount), filled(2));
    EXPECT_DONE(ncclGroupStart());
    EXPECT_DONE(ncclSend(own.send, kCount, ncclFloat32, 1 - rank, comm, own.stream()));
    EXPECT_DONE(ncclRecv(own.recv, kCount, ncclFloat32, 1 - rank, comm, own.stream()));
    EXPECT_DONE(ncclGroupEnd());
    EXPECT_EQ(own.read(kCount), filled(static_cast<float>(2 - rank)));
    EXPECT_DONE(ncclCommDestroy(comm));
  });
}

/// Calls as PyTorch does, whose point-to-point communicators see no collective call.
TEST(OnDevice, MessagesMayComeFirst) {
  FakeDriver cuda;
  tutti::testing::add_walkers(cuda);
  ncclUniqueId id;
  EXPECT_DONE(ncclGetUniqueId(&id));
  on_threads(2, [&](int rank) {
    Rank own(0, 1);
    ncclComm_t comm = nullptr;
    EXPECT_DONE(ncclCommInitRank(&comm, 2, id, rank));
    ncclComm_t part = nullptr;
    EXPECT_DONE(ncclCommSplit(comm, 0, rank, &part, nullptr));
    for (const ncclComm_t on : {comm, part}) {
      own.write(filled(static_cast<float>(rank + 1)));
      EXPECT_DONE(rank == 0 ? ncclSend(own.send, kCount, ncclFloat32, 1, on, own.stream())
                            : ncclRecv(own.recv, kCount, ncclFloat32, 0, on, own.stream()));
      if (rank == 1) {
        EXPECT_EQ(own.read(kCount), filled(1));
      }
    }
    EXPECT_DONE(ncclCommDestroy(part));
    EXPECT_DONE(ncclCommDestroy(comm));
  });
  const std::vector<int> devices = {0, 0};
  std::vector<ncclComm_t> comms(2);
  EXPECT_DONE(ncclCommInitAll(comms.data(), 2, devices.data()));
  Rank sender(0, 1), receiver(0, 1);
  sender.write(filled(7));
  EXPECT_DONE(ncclGroupStart());
  EXPECT_DONE(ncclSend(sender.send, kCount, ncclFloat32, 1, comms[0], sender.stream()));
  EXPECT_DONE(ncclRecv(receiver.recv, kCount, ncclFloat32, 0, comms[1], receiver.stream()));
  EXPECT_DONE(ncclGroupEnd());
  EXPECT_EQ(receiver.read(kCount), filled(7));
  for (const ncclComm_t comm : comms) EXPECT_DONE(ncclCommDestroy(comm));
}

TEST(OnDevice, AGroupIsOneLaunch) {
  FakeDriver cuda;
  tutti::testing::add_walkers(cuda);
  constexpr int kRanks = 2;
  const std::vector<ncclComm_t> comms = init_all(kRanks);
  std::atomic<int> before{0};
  std::barrier together(kRanks);
  on_threads(kRanks, [&](int rank) {
    const ncclComm_t comm = comms[static_cast<std::size_t>(rank)];
    Rank own(0, kRanks);
    own.write(filled(1, kRanks * kCount));
    EXPECT_DONE(ncclAllReduce(own.send, own.recv, kCount, ncclFloat32, ncclSum, comm, own.stream()));
    together.arrive_and_wait();
    if (rank == 0) before = cuda.calls("cuLaunchKernel");
    together.arrive_and_wait();
    EXPECT_DONE(ncclGroupStart());
    EXPECT_DONE(ncclAllReduce(own.send, own.send, kCount, ncclFloat32, ncclSum, comm, own.stream()));
    EXPECT_DONE(ncclAllReduce(own.send, own.send, kCount, ncclFloat32, ncclProd, comm, own.stream()));
    EXPECT_DONE(ncclBroadcast(own.send, own.send, kCount, ncclFloat32, 0, comm, own.stream()));
    EXPECT_DONE(ncclAllGather(own.send, own.recv, kCount, ncclFloat32, comm, own.stream()));
    EXPECT_DONE(ncclGroupEnd());
    EXPECT_EQ(own.read(kRanks * kCount), filled(4, kRanks * kCount));
    together.arrive_and_wait();
    if (rank == 0) {
      EXPECT_EQ(cuda.calls("cuLaunchKernel") - before, kRanks);
    }
    EXPECT_DONE(ncclCommDestroy(comm));
  });
}

TEST(OnDevice, NonBlocking) {
  FakeDriver cuda;
  tutti::testing::add_walkers(cuda);
  ncclUniqueId id;
  EXPECT_DONE(ncclGetUniqueId(&id));
  on_threads(2, [&](int rank) {
    Rank own(0, 1);
    ncclConfig_t config = new_config();
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 2, id, rank, &config), ncclInProgress);
    EXPECT_EQ(settle(comm), ncclSuccess);
    own.write(filled(static_cast<float>(rank + 1)));
    EXPECT_EQ(ncclAllReduce(own.send, own.recv, kCount, ncclFloat32, ncclSum, comm, own.stream()), ncclInProgress);
    EXPECT_EQ(settle(comm), ncclSuccess) << ncclGetLastError(comm);
    EXPECT_EQ(own.read(kCount), filled(3));
    EXPECT_DONE(ncclCommDestroy(comm));
  });
}

/// Earlier work in the streams of the thread that makes the calls comes before them, also where it drives several
/// ranks.
TEST(OnDevice, ThePerThreadStreamIsTheCallers) {
  FakeDriver cuda({.devices = 2});
  tutti::testing::add_walkers(cuda);
  fake_is_on_device = [](std::uintptr_t pointer) {
    return device::kind_of(reinterpret_cast<const void*>(pointer)).on_device();
  };
  const device::Driver& driver = *device::driver().value();
  for (const int blocking : {1, 0}) {
    const auto called = [blocking](ncclResult_t result) {
      EXPECT_TRUE(result == ncclSuccess || (blocking == 0 && result == ncclInProgress)) << ncclGetLastError(nullptr);
    };
    ncclUniqueId id;
    EXPECT_DONE(ncclGetUniqueId(&id));
    ncclConfig_t config = new_config();
    config.blocking = blocking;
    ncclComm_t comms[2] = {};
    EXPECT_DONE(ncclGroupStart());
    for (int r = 0; r < 2; ++r) {
      fake_set_device(r);
      called(ncclCommInitRankConfig(&comms[r], 2, id, r, &config));
    }
    called(ncclGroupEnd());
    fake_set_device(0);
    for (const ncclComm_t comm : comms) EXPECT_EQ(settle(comm), ncclSuccess);
    Rank ranks[] = {Rank(0, 1), Rank(1, 1)};
    const std::vector<float> values[] = {filled(1), filled(2)};
    std::uint64_t* gates[2] = {};
    for (int r = 0; r < 2; ++r) {
      ranks[r].write(filled(100));
      gates[r] = reinterpret_cast<std::uint64_t*>(ranks[r].memory.allocate(sizeof(std::uint64_t)));
      *gates[r] = 0;
      const auto context = device::enter(r);
      must_cuda(driver.StreamWaitValue64(CU_STREAM_PER_THREAD, reinterpret_cast<CUdeviceptr>(gates[r]), 1,
                                         CU_STREAM_WAIT_VALUE_GEQ),
                "cuStreamWaitValue64");
      must_cuda(driver.MemcpyAsync(reinterpret_cast<CUdeviceptr>(ranks[r].send),
                                   reinterpret_cast<CUdeviceptr>(values[r].data()), kCount * sizeof(float),
                                   CU_STREAM_PER_THREAD),
                "cuMemcpyAsync");
    }
    EXPECT_DONE(ncclGroupStart());
    for (int r = 0; r < 2; ++r) {
      called(ncclAllReduce(ranks[r].send, ranks[r].recv, kCount, ncclFloat32, ncclSum, comms[r],
                           reinterpret_cast<cudaStream_t>(CU_STREAM_PER_THREAD)));
    }
    called(ncclGroupEnd());
    for (const ncclComm_t comm : comms) EXPECT_EQ(settle(comm), ncclSuccess) << ncclGetLastError(comm);
    for (std::uint64_t* gate : gates) std::atomic_ref<std::uint64_t>(*gate).store(1);
    for (int r = 0; r < 2; ++r) {
      const auto context = device::enter(r);
      must_cuda(driver.StreamSynchronize(CU_STREAM_PER_THREAD), "cuStreamSynchronize");
    }
    for (Rank& rank : ranks) EXPECT_EQ(rank.read(kCount), filled(3)) << (blocking != 0 ? "blocking" : "non-blocking");
    for (const ncclComm_t comm : comms) EXPECT_DONE(ncclCommDestroy(comm));
  }
  fake_is_on_device = nullptr;
}

TEST(OnDevice, MemoryOfTheDevice) {
  FakeDriver cuda;
  tutti::testing::add_walkers(cuda);
  const auto context = device::enter(0);
  void* memory = nullptr;
  EXPECT_DONE(ncclMemAlloc(&memory, 1 << 20));
  EXPECT_TRUE(device::kind_of(memory).on_device());
  EXPECT_DONE(ncclMemFree(memory));
}

/// Ways without algorithms, such as GPUDirect, serve calls that name none.
TEST(OnDevice, AWishForWhatIsNotThereIsNone) {
  const auto algorithm = [](Collective collective, const char* names, int forced) {
    ncclCollConfig_t given = new_call_config();
    given.algSelection = names;
    given.forceAlgSelection = forced;
    CallConfig config;
    EXPECT_EQ(read_call_config("f", collective, &given, config).result, ncclSuccess);
    return config.algorithm;
  };
  EXPECT_EQ(algorithm(Collective::all_reduce, "NVLS", 0), "");
  EXPECT_EQ(algorithm(Collective::all_reduce, "NVLS,CollnetDirect_Simple,auto", 0), "");
  EXPECT_EQ(algorithm(Collective::all_reduce, "NVLS,Ring_LL", 0), "ring,auto");
  EXPECT_EQ(algorithm(Collective::broadcast, "ring", 0), "chain,auto");
  EXPECT_EQ(algorithm(Collective::all_reduce, "NVLS", 1), "nvls");
}

TEST(OnDevice, AMismatchIsAnAsynchronousError) {
  FakeDriver cuda;
  tutti::testing::add_walkers(cuda);
  const std::vector<ncclComm_t> comms = init_all(2);
  on_threads(2, [&](int rank) {
    Rank own(0, 2);
    const ncclComm_t comm = comms[static_cast<std::size_t>(rank)];
    own.write(filled(1, 2 * kCount));
    const ncclResult_t called = rank == 0
                                    ? ncclAllReduce(own.send, own.recv, 100, ncclFloat32, ncclSum, comm, own.stream())
                                    : ncclAllGather(own.send, own.recv, 100, ncclFloat32, comm, own.stream());
    EXPECT_TRUE(called == ncclSuccess || called == ncclInvalidUsage) << ncclGetLastError(comm);
    ncclResult_t state = ncclSuccess;
    wait_until([&] { return ncclCommGetAsyncError(comm, &state) != ncclSuccess || state != ncclSuccess; });
    EXPECT_EQ(state, ncclInvalidUsage);
    EXPECT_THAT(ncclGetLastError(comm), AllOf(HasSubstr("all_reduce(100 x f32"), HasSubstr("all_gather(100 x f32")));
    EXPECT_DONE(ncclCommAbort(comm));
  });
}

}  // namespace
}  // namespace tutti::nccl::testing
