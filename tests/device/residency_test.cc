// Several communicators on one GPU: their kernels never need more room than there is, on a fake driver that lets blocks
// wait for room as a GPU does, or on the machine's.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "tests/collectives/must.h"
#include "tests/collectives/ranks.h"
#include "tests/device/device_buffers.h"
#include "tests/support/test_gpus.h"

namespace tutti::testing::residency_test {
namespace {

void sum(Communicator& comm, std::byte* data, std::size_t count, const DeviceBuffers& memory) {
  comm.all_reduce(data, data, count, DataType::u32, ReduceOp::sum, {.stream = memory.stream()});
}

// Each rank launches the two communicators' calls in its own order: none may wait for room that the other one has.
TEST(DeviceResidency, TwoCommunicatorsInOppositeOrders) {
  TestGpus gpus;
  constexpr std::size_t kCount = 200000;  // as many blocks as a call can have
  expect_no_errors(run_threads(2, [](Communicator& comm) {
    Communicator other = comm.split(0, comm.rank());
    DeviceBuffers one(0);
    DeviceBuffers two(0);
    std::byte* first = one.allocate(4 * kCount);
    std::byte* second = two.allocate(4 * kCount);
    const std::vector<std::uint32_t> ones(kCount, 1);
    one.write(first, std::as_bytes(std::span(ones)));
    two.write(second, std::as_bytes(std::span(ones)));
    sum(comm, first, kCount, one);
    sum(other, second, kCount, two);
    for (int turn = 0; turn < 8; ++turn) {
      for (int k = 0; k < 2; ++k) {
        if ((k + comm.rank()) % 2 == 0) {
          sum(comm, first, kCount, one);
        } else {
          sum(other, second, kCount, two);
        }
      }
    }
    std::uint32_t got = 0;
    std::memcpy(&got, one.read(first + 4 * (kCount - 1), 4).data(), 4);
    MUST(got == 512);
    std::memcpy(&got, two.read(second, 4).data(), 4);
    MUST(got == 512);
  }));
  if (gpus.fake() != nullptr) {
    EXPECT_LE(gpus.fake()->resident_most(0), 32);
  }
}

TEST(DeviceResidency, WhereThereIsNoRoomLeftTheCommunicatorSaysSo) {
  NEEDS_FAKE_DRIVER("its GPU has next to no room");
  TestGpus gpus({.multiprocessors = 2, .blocks_per_multiprocessor = 2});
  expect_no_errors(run_threads(2, [](Communicator& comm) {
    DeviceBuffers memory(0);
    std::byte* data = memory.allocate(64);
    std::vector<Communicator> others;
    std::string told;
    for (int i = 0; i < 6 && told.empty(); ++i) {
      others.push_back(comm.split(0, comm.rank()));
      try {
        sum(others.back(), data, 16, memory);
      } catch (const Error& error) {
        MUST(error.code() == Code::unsupported);
        told = error.what();
      }
    }
    MUST(told.find("has no room for the kernels of one more communicator of 2 ranks") != std::string::npos ||
         told.find("cannot work on device memory") != std::string::npos);
    others.back().barrier();  // on host memory it works
    memory.synchronize();
    others.erase(others.begin(), others.end() - 1);
    comm.barrier();  // no rank has the others' blocks any longer
    sum(others.back(), data, 16, memory);
    memory.synchronize();
  }));
}

TEST(DeviceResidency, ACommunicatorOfOneNeedsNone) {
  TestGpus gpus;
  Communicator alone = Communicator::in_process(1).front();
  DeviceBuffers memory(0);
  const std::vector<std::uint32_t> numbers(100, 7);
  std::byte* from = memory.allocate(400);
  std::byte* to = memory.allocate(400);
  memory.write(from, std::as_bytes(std::span(numbers)));
  alone.all_reduce(from, to, 100, DataType::u32, ReduceOp::sum, {.stream = memory.stream()});
  EXPECT_EQ(std::memcmp(memory.read(to, 400).data(), numbers.data(), 400), 0);
  if (gpus.fake() != nullptr) {
    EXPECT_EQ(gpus.fake()->calls("cuLaunchKernel"), 0);
  }
}

}  // namespace
}  // namespace tutti::testing::residency_test
