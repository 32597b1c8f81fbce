// Device memory with ranks as processes, each with a fake driver of its own or all on the machine's: on GPUs of their
// own, where kernels wait for each other, and on one GPU, where streams wait between kernels. Also ranks that die, stay
// away or differ.
#include <gtest/gtest.h>

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tests/collectives/must.h"
#include "tests/collectives/processes.h"
#include "tests/device/device_buffers.h"
#include "tests/device/host_reference.h"
#include "tests/support/test_gpus.h"

namespace tutti::testing::communicator_processes_test {
namespace {

using Value = std::uint32_t;

Value number(int turn, int rank, std::size_t i) {
  return static_cast<Value>(turn) * 7919 + static_cast<Value>(rank) * 104729 + static_cast<Value>(i) * 31;
}

// Sums of several sizes, the same buffers again and again, others in between; and the other collectives.
std::string sums(Communicator& comm, int device) {
  DeviceBuffers memory(device);
  const auto n = static_cast<std::size_t>(comm.size());
  // In groups: a sum, what all have of it, and the sum of that.
  for (const std::size_t count : {20u, 30000u}) {
    std::byte* data = memory.allocate(4 * count);
    std::byte* all = memory.allocate(4 * count * n);
    std::vector<Value> mine(count);
    for (std::size_t i = 0; i < count; ++i) mine[i] = number(1, comm.rank(), i);
    memory.write(data, std::as_bytes(std::span(mine)));
    comm.group_start();
    comm.all_reduce(data, data, count, DataType::u32, ReduceOp::sum, {.stream = memory.stream()});
    comm.all_gather(data, all, count, DataType::u32, {.stream = memory.stream()});
    comm.all_reduce(all, all, count * n, DataType::u32, ReduceOp::sum, {.stream = memory.stream()});
    comm.group_end();
    const std::vector<std::byte> got = memory.read(all, 4 * count * n);
    for (std::size_t i = 0; i < count * n; ++i) {
      Value sum = 0;
      for (int r = 0; r < comm.size(); ++r) sum += number(1, r, i % count);
      Value value = 0;
      std::memcpy(&value, got.data() + 4 * i, 4);
      MUST(value == sum * static_cast<Value>(comm.size()));
    }
  }
  for (const std::size_t count : {1u, 300u, 20000u, 300000u}) {
    std::byte* in = memory.allocate(4 * count);
    std::byte* out = memory.allocate(4 * count * n);
    std::vector<Value> mine(count);
    for (int turn = 0; turn < 6; ++turn) {
      for (std::size_t i = 0; i < count; ++i) mine[i] = number(turn, comm.rank(), i);
      memory.write(in, std::as_bytes(std::span(mine)));
      comm.all_reduce(in, out, count, DataType::u32, ReduceOp::sum, {.stream = memory.stream()});
      std::vector<std::byte> got = memory.read(out, 4 * count);
      for (std::size_t i = 0; i < count; ++i) {
        Value sum = 0;
        for (int r = 0; r < comm.size(); ++r) sum += number(turn, r, i);
        Value value = 0;
        std::memcpy(&value, got.data() + 4 * i, 4);
        MUST(value == sum);
      }
      comm.all_gather(in, out, count, DataType::u32, {.stream = memory.stream()});
      got = memory.read(out, 4 * count * n);
      for (std::size_t i = 0; i < count * n; ++i) {
        Value value = 0;
        std::memcpy(&value, got.data() + 4 * i, 4);
        MUST(value == number(turn, static_cast<int>(i / count), i % count));
      }
    }
  }
  // Each passes something on to the next one, around the ring: more than the slots of a window hold.
  constexpr std::size_t kCount = 400000;
  std::byte* from = memory.allocate(4 * kCount);
  std::byte* to = memory.allocate(4 * kCount);
  std::vector<Value> mine(kCount);
  const int next = (comm.rank() + 1) % comm.size();
  const int previous = (comm.rank() + comm.size() - 1) % comm.size();
  for (int turn = 0; turn < 3; ++turn) {
    for (std::size_t i = 0; i < kCount; ++i) mine[i] = number(turn, comm.rank(), i);
    memory.write(from, std::as_bytes(std::span(mine)));
    comm.group_start();
    comm.send(from, kCount, DataType::u32, next, 0, memory.stream());
    comm.recv(to, kCount, DataType::u32, previous, 0, nullptr, memory.stream());
    comm.group_end();
    const std::vector<std::byte> got = memory.read(to, 4 * kCount);
    for (std::size_t i = 0; i < kCount; ++i) {
      Value value = 0;
      std::memcpy(&value, got.data() + 4 * i, 4);
      MUST(value == number(turn, previous, i));
    }
  }
  return comm.explain_last_call().algorithm + ": " + comm.explain_last_call().reason;
}

class DeviceProcesses : public ::testing::TestWithParam<int> {};

TEST_P(DeviceProcesses, EachOnAGpuOfItsOwn) {
  const int ranks = GetParam();
  NEEDS_GPUS(ranks);
  const auto outcomes = run_processes(ranks, [ranks](Communicator& comm) {
    TestGpus gpus({.devices = ranks});
    const std::string how = sums(comm, comm.rank());
    comm = {};
    return how;
  });
  expect_no_errors(outcomes);
  EXPECT_NE(outcomes[0].said.find("direct"), std::string::npos) << outcomes[0].said;
}

TEST_P(DeviceProcesses, AllOnOneGpu) {
  const auto outcomes = run_processes(GetParam(), [](Communicator& comm) {
    TestGpus gpus;
    const std::string how = sums(comm, 0);
    comm = {};
    return how;
  });
  expect_no_errors(outcomes);
  EXPECT_NE(outcomes[0].said.find("cut at their waits"), std::string::npos) << outcomes[0].said;
}

// A program of a call that differs from the last one takes its place in memory, and perhaps has other cuts.
TEST_P(DeviceProcesses, AllCollectivesOnOneGpu) {
  expect_no_errors(run_processes(GetParam(), [](Communicator& comm) {
    TestGpus gpus;
    {
      DeviceBuffers memory(0);
      compare_with_host(comm, memory, 7);
      for (const std::size_t unit : {3u, 200000u, 5u, 60000u}) check_all_to_allv(comm, memory, unit);
      MUST(comm.explain_last_call().reason.find("cut at their waits") != std::string::npos);
    }
    comm = {};
    return std::string();
  }));
}

// Side by side by MPS: kernels wait for each other, and those of all processes together find room on the GPU.
TEST_P(DeviceProcesses, AllOnOneGpuUnderMps) {
  NEEDS_FAKE_DRIVER("it says that there is MPS");
  const auto on_one = [](const Environment& environment, bool mps) {
    return run_processes(
        GetParam(),
        [mps](Communicator& comm) {
          TestGpus gpus({.mps = mps});
          const std::string how = sums(comm, 0);
          MUST(how.find("cut at their waits") != std::string::npos ||
               comm.size() * gpus.fake()->resident_most(0) <= 32);
          comm = {};
          return how;
        },
        environment);
  };
  auto outcomes = on_one({}, true);
  expect_no_errors(outcomes);
  EXPECT_NE(outcomes[0].said.find("one kernel"), std::string::npos) << outcomes[0].said;
  outcomes = on_one({{"TUTTI_SHARED_GPU", "streams"}}, true);
  expect_no_errors(outcomes);
  EXPECT_NE(outcomes[0].said.find("cut at their waits"), std::string::npos) << outcomes[0].said;
  outcomes = on_one({{"TUTTI_SHARED_GPU", "kernels"}}, false);
  expect_no_errors(outcomes);
  EXPECT_NE(outcomes[0].said.find("one kernel"), std::string::npos) << outcomes[0].said;
}

INSTANTIATE_TEST_SUITE_P(Ranks, DeviceProcesses, ::testing::Values(2, 3));

TEST(DevicesOfProcesses, OneGpuWhoseStreamsWaitForNoValuesIsRefused) {
  NEEDS_FAKE_DRIVER("its streams wait for no values");
  expect_no_errors(run_processes(2, [](Communicator& comm) {
    TestGpus gpus({.wait_values = false});
    std::string told;
    try {
      comm.open_device(0);
    } catch (const Error& error) {
      MUST(error.code() == Code::unsupported);
      told = error.what();
    }
    MUST(told.find("has no streams that wait for values, which processes that share a GPU need") != std::string::npos);
    MUST(gpus.fake()->calls("cuLaunchKernel") == 0);
    comm.barrier();  // and host memory goes on working
    comm = {};
    return std::string();
  }));
}

// Of a group of two kernels the first is in the stream when the second is refused: it waits for a peer that never
// comes, and the communicator's end waits for it.
TEST(DevicesOfProcesses, AGroupThatIsRefusedHalfwayIsStillWaitedFor) {
  NEEDS_FAKE_DRIVER("it refuses a launch");
  const auto outcomes = run_processes(2, [](Communicator& comm) {
    TestGpus gpus({.devices = 2});
    std::string told;
    {
      DeviceBuffers memory(comm.rank());
      std::byte* data = memory.allocate(400);
      memory.write(data, std::vector<std::byte>(400));
      try {  // rank 0 may hear of it as early as in open_device()
        comm.open_device(comm.rank());
        if (comm.rank() == 1) gpus.fake()->fail("cuLaunchKernel", CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, 2);
        comm.group_start();
        for (int i = 0; i < 20 && comm.rank() == 1; ++i) {
          comm.all_reduce(data, data, 100, DataType::u32, ReduceOp::sum, {.stream = memory.stream()});
        }
        comm.group_end();
        while (comm.status(&told) == Code::ok) std::this_thread::yield();
      } catch (const Error& error) {
        told = error.what();
      }
      comm = {};
      MUST(memory.driver().StreamQuery(memory.stream()) == CUDA_SUCCESS);
    }
    return told;
  });
  expect_all_say(outcomes, "cuLaunchKernel failed");
}

/// Each sends to the next one, around the ring, by so many kernels, where they are counted.
void pass_on(Communicator& comm, DeviceBuffers& memory, TestGpus& gpus, int kernels) {
  constexpr std::size_t kCount = 5000;
  const int n = comm.size();
  std::vector<Value> mine(kCount);
  for (std::size_t i = 0; i < kCount; ++i) mine[i] = number(0, comm.rank(), i);
  std::byte* from = memory.allocate(4 * kCount);
  std::byte* to = memory.allocate(4 * kCount);
  memory.write(from, std::as_bytes(std::span(mine)));
  const auto counted = [&] { return gpus.fake() != nullptr ? gpus.fake()->calls("cuLaunchKernel") : 0; };
  const int before = counted();
  comm.group_start();
  comm.send(from, kCount, DataType::u32, (comm.rank() + 1) % n, 0, memory.stream());
  comm.recv(to, kCount, DataType::u32, (comm.rank() + n - 1) % n, 0, nullptr, memory.stream());
  comm.group_end();
  memory.must_hold<Value>(to, kCount, [&](std::size_t i) { return number(0, (comm.rank() + n - 1) % n, i); });
  MUST(gpus.fake() == nullptr || counted() - before == kernels);
}

// Rank 0 sends to rank 1, which receives before the first collective call or after it; rank 2 has nothing to do with
// it.
TEST(DeviceMessages, MayComeFirst) {
  NEEDS_GPUS(3);
  for (const bool receives_first : {true, false}) {
    expect_no_errors(run_processes(3, [receives_first](Communicator& comm) {
      TestGpus gpus({.devices = 3});
      {
        DeviceBuffers memory(comm.rank());
        std::byte* data = memory.allocate(400);
        memory.write(data, std::vector<std::byte>(400, std::byte(comm.rank() == 0 ? 7 : 0)));
        std::byte* sum = memory.allocate(400);
        memory.write(sum, std::vector<std::byte>(400, std::byte{1}));
        const auto add_up = [&] {
          comm.all_reduce(sum, sum, 400, DataType::u8, ReduceOp::sum, {.stream = memory.stream()});
        };
        const auto receive = [&] { comm.recv(data, 400, DataType::u8, 0, 0, nullptr, memory.stream()); };
        if (comm.rank() == 0) comm.send(data, 400, DataType::u8, 1, 0, memory.stream());
        if (comm.rank() == 1 && receives_first) receive();
        add_up();
        if (comm.rank() == 1 && !receives_first) receive();
        memory.must_hold<std::uint8_t>(data, 400, [&](std::size_t) { return comm.rank() < 2 ? 7 : 0; });
        memory.must_hold<std::uint8_t>(sum, 400, [&](std::size_t) { return 3; });
        MUST(comm.explain_last_call().reason.find("kernel") != std::string::npos);
        pass_on(comm, memory, gpus, 0);
      }
      comm = {};
      return std::string();
    }));
  }
}

TEST(DeviceMessages, GoByKernelsOnceTheMemoryIsOpen) {
  NEEDS_GPUS(3);
  expect_no_errors(run_processes(3, [](Communicator& comm) {
    TestGpus gpus({.devices = 3});
    {
      DeviceBuffers memory(comm.rank());
      comm.open_device(comm.rank());
      pass_on(comm, memory, gpus, 1);
    }
    comm = {};
    return std::string();
  }));
}

// What every rank is told when `misbehave` is done by rank 1 in the third call.
std::vector<Outcome> with_a_bad_rank(bool one_gpu,
                                     const std::function<void(Communicator&, std::byte*, CUstream)>& misbehave,
                                     const Environment& environment = {}) {
  return run_processes(
      3,
      [&](Communicator& comm) -> std::string {
        TestGpus gpus({.devices = 3});
        std::string told;
        {
          DeviceBuffers memory(one_gpu ? 0 : comm.rank());
          std::byte* data = memory.allocate(4 * 5000);
          memory.write(data, std::vector<std::byte>(20000));
          try {
            for (int turn = 0; turn < 3; ++turn) {
              if (turn == 2 && comm.rank() == 1) {
                misbehave(comm, data, memory.stream());
              } else {
                comm.all_reduce(data, data, 5000, DataType::u32, ReduceOp::sum, {.stream = memory.stream()});
              }
            }
            memory.synchronize();
            while (comm.status(&told) == Code::ok) std::this_thread::yield();
            comm.all_reduce(data, data, 5000, DataType::u32, ReduceOp::sum, {.stream = memory.stream()});
          } catch (const Error& error) {
            told = error.what();
          }
          memory.synchronize();  // aborted kernels have ended
        }
        comm = {};
        return told;
      },
      environment);
}

class DeviceFailures : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override { NEEDS_GPUS(GetParam() ? 1 : 3); }
};

TEST_P(DeviceFailures, AnotherCallIsNamed) {
  const auto outcomes = with_a_bad_rank(GetParam(), [](Communicator& comm, std::byte* data, CUstream stream) {
    comm.all_reduce(data, data, 4999, DataType::u32, ReduceOp::sum, {.stream = stream});
  });
  expect_all_say(outcomes, "called all_reduce(4999 x u32, sum) as its call 3");
  EXPECT_EQ(outcomes[0].said, outcomes[1].said);
  EXPECT_EQ(outcomes[0].said, outcomes[2].said);
}

TEST_P(DeviceFailures, HostMemoryOnOneRankIsNamed) {
  const auto outcomes = with_a_bad_rank(GetParam(), [](Communicator& comm, std::byte*, CUstream) {
    std::vector<Value> host(5000);
    comm.all_reduce(host.data(), host.data(), 5000, DataType::u32, ReduceOp::sum);
  });
  expect_all_say(outcomes, "called all_reduce(5000 x u32, sum) as its call 3 on device memory");
  expect_all_say(outcomes, "on host memory");
  expect_all_say(outcomes, "rank 1 (");
  EXPECT_EQ(outcomes[0].said, outcomes[1].said);
  EXPECT_EQ(outcomes[0].said, outcomes[2].said);
}

TEST_P(DeviceFailures, ARankThatDies) {
  const auto outcomes = with_a_bad_rank(GetParam(), [](Communicator&, std::byte*, CUstream) { ::raise(SIGKILL); });
  expect_all_say(outcomes, "died", 1);
}

TEST_P(DeviceFailures, ARankThatStaysAway) {
  const auto outcomes = with_a_bad_rank(GetParam(),
                                        [](Communicator& comm, std::byte*, CUstream) {
                                          while (comm.status() == Code::ok) std::this_thread::yield();
                                        },
                                        {{"TUTTI_TIMEOUT", "2s"}});
  expect_all_say(outcomes, "rank 1");
  expect_all_say(outcomes, "has not entered it");
}

TEST_P(DeviceFailures, ARankThatAborts) {
  const auto outcomes =
      with_a_bad_rank(GetParam(), [](Communicator& comm, std::byte*, CUstream) { comm.abort("enough of it"); });
  expect_all_say(outcomes, "aborted the communicator: enough of it");
}

INSTANTIATE_TEST_SUITE_P(OnOneGpu, DeviceFailures, ::testing::Bool());

}  // namespace
}  // namespace tutti::testing::communicator_processes_test
