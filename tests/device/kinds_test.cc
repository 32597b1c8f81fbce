// Ranks of which some pass host memory and some device memory in the same call, as threads, on a fake driver.
#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/collectives/must.h"
#include "tests/collectives/ranks.h"
#include "tests/device/device_buffers.h"
#include "tests/support/fake_cuda/walkers.h"

namespace tutti::testing::kinds_test {
namespace {

using Calls = std::function<void(Communicator&, DeviceBuffers&)>;

/// Returns the error that each rank gets when rank `odd` makes its call as `odd_call`, and the others make theirs as
/// `call`; all have made those of `before`.
std::vector<std::string> errors_of_kinds(int ranks, int odd, const Calls& before, const Calls& call,
                                         const Calls& odd_call) {
  return run_threads(ranks, [&](Communicator& comm) {
    DeviceBuffers memory(0);
    std::string told;
    try {
      before(comm, memory);
      (comm.rank() == odd ? odd_call : call)(comm, memory);
      while (comm.status(&told) == Code::ok) std::this_thread::yield();
      MUST(comm.status() == Code::mismatch);
    } catch (const Error& error) {
      MUST(error.code() == Code::mismatch);
      told = error.what();
    }
    memory.synchronize();  // kernels that waited have ended
    throw std::runtime_error(told);
  });
}

void sum_on_host(Communicator& comm, DeviceBuffers&) {
  float host[100] = {};
  comm.all_reduce(host, host, 100, DataType::f32);
}

void sum_on_device(Communicator& comm, DeviceBuffers& memory) {
  std::byte* data = memory.allocate(400);
  comm.all_reduce(data, data, 100, DataType::f32, ReduceOp::sum, {.stream = memory.stream()});
}

void several_of_both(Communicator& comm, DeviceBuffers& memory) {
  for (int i = 0; i < 3; ++i) {
    sum_on_device(comm, memory);
    comm.barrier();
    sum_on_host(comm, memory);
    sum_on_device(comm, memory);
  }
}

// Where the ranks have not opened their memory yet, they meet in calls of the host.
TEST(DeviceKinds, KindsOfTheFirstCallAreCompared) {
  FakeDriver cuda;
  add_walkers(cuda);
  const auto nothing = [](Communicator&, DeviceBuffers&) {};
  const auto errors = errors_of_kinds(2, 1, nothing, sum_on_host, sum_on_device);
  for (const std::string& error : errors) {
    EXPECT_EQ(error, errors[0]);
    EXPECT_NE(error.find(") called all_reduce(100 x f32, sum) as its call 1, rank 1 ("), std::string::npos) << error;
    EXPECT_NE(error.find(") called all_reduce(100 x f32, sum, device memory) as its call 1"), std::string::npos)
        << error;
  }
  const auto opened =
      errors_of_kinds(2, 1, nothing, sum_on_host, [](Communicator& comm, DeviceBuffers&) { comm.open_device(0); });
  for (const std::string& error : opened) {
    EXPECT_NE(error.find("called open_device() as its call 1"), std::string::npos) << error;
  }
}

TEST(DeviceKinds, KindsOfLaterCallsAreComparedToo) {
  FakeDriver cuda;
  add_walkers(cuda);
  for (const int odd : {0, 2}) {
    for (const bool odd_on_host : {true, false}) {
      const auto errors = odd_on_host ? errors_of_kinds(3, odd, several_of_both, sum_on_device, sum_on_host)
                                      : errors_of_kinds(3, odd, several_of_both, sum_on_host, sum_on_device);
      for (const std::string& error : errors) {
        EXPECT_EQ(error, errors[0]);
        EXPECT_NE(error.find("called all_reduce(100 x f32, sum) as its call 7 on device memory"), std::string::npos)
            << error;
        EXPECT_NE(error.find("on host memory"), std::string::npos) << error;
        EXPECT_NE(error.find("rank " + std::to_string(odd) + " ("), std::string::npos) << error;
        EXPECT_NE(error.find("; expected one kind of memory on all ranks"), std::string::npos) << error;
      }
    }
  }
}

// The root of a broadcast waits for no rank, so it must be the others that find out: their kernels, or their hosts.
TEST(DeviceKinds, ARankThatGivesAndGoesAwayIsNamed) {
  FakeDriver cuda;
  add_walkers(cuda);
  const auto on_device = [](Communicator& comm, DeviceBuffers& memory) {
    std::byte* data = memory.allocate(16);
    comm.broadcast(data, data, 4, DataType::i32, 1, {.stream = memory.stream()});
  };
  const auto on_host = [](Communicator& comm, DeviceBuffers&) {
    int host[4] = {};
    comm.broadcast(host, host, 4, DataType::i32, 1);
  };
  for (const bool gives_from_host : {true, false}) {
    const auto errors = gives_from_host ? errors_of_kinds(2, 1, several_of_both, on_device, on_host)
                                        : errors_of_kinds(2, 1, several_of_both, on_host, on_device);
    const std::string kind = gives_from_host ? "device" : "host";
    for (const std::string& error : errors) {
      EXPECT_EQ(error, errors[0]);
      EXPECT_NE(error.find("called broadcast(4 x i32, root 1) as its call 7 on device memory"), std::string::npos)
          << error;
      EXPECT_NE(error.find("on " + kind + " memory, rank 1 ("), std::string::npos) << error;
    }
  }
}

TEST(DeviceKinds, KindsOfAnAllToAllvAreToldWithItsCounts) {
  FakeDriver cuda;
  add_walkers(cuda);
  const auto exchange = [](Communicator& comm, std::byte* send, std::byte* recv, Stream stream) {
    const std::size_t counts[] = {4, 4, 4};
    const std::size_t offsets[] = {0, 4, 8};
    comm.all_to_allv(send, counts, offsets, recv, counts, offsets, DataType::u8, {.stream = stream});
  };
  const auto on_device = [&](Communicator& comm, DeviceBuffers& memory) {
    exchange(comm, memory.allocate(12), memory.allocate(12), memory.stream());
  };
  const auto on_host = [&](Communicator& comm, DeviceBuffers&) {
    std::byte host[24] = {};
    exchange(comm, host, host + 12, nullptr);
  };
  const auto errors = errors_of_kinds(3, 2, several_of_both, on_device, on_host);
  for (const std::string& error : errors) {
    EXPECT_EQ(error, errors[0]);
    EXPECT_NE(error.find("on device memory, rank 2 ("), std::string::npos) << error;
    EXPECT_NE(error.find("on host memory; expected one kind of memory on all ranks"), std::string::npos) << error;
  }
}

// One rank launches a graph where the other one makes calls: their numbers differ, and the calls do not.
TEST(DeviceKinds, ARankWithAGraphMeetsOneWithout) {
  FakeDriver cuda;
  add_walkers(cuda);
  expect_no_errors(run_threads(2, [](Communicator& comm) {
    DeviceBuffers memory(0);
    several_of_both(comm, memory);
    std::byte* data = memory.allocate(400);
    const auto sum = [&] {
      comm.all_reduce(data, data, 100, DataType::u32, ReduceOp::sum, {.stream = memory.stream()});
    };
    if (comm.rank() == 0) {
      DeviceGraph graph(memory, sum);
      for (int i = 0; i < 5; ++i) graph.launch();
      memory.synchronize();
    }
    for (int i = 0; i < 5 && comm.rank() == 1; ++i) sum();
    for (int i = 0; i < 3; ++i) {
      comm.barrier();
      sum_on_device(comm, memory);
    }
    memory.synchronize();
    comm.barrier();
    MUST(comm.status() == Code::ok);
  }));
}

}  // namespace
}  // namespace tutti::testing::kinds_test
