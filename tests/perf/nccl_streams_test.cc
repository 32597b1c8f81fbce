// A call that was started with backend nccl is in its stream when the function that starts it returns: what the caller
// puts there next, as a training step does, finds its result. On two GPUs that are none (nccl/fake_libcuda.cc) and an
// NCCL that is none (nccl/fake_nccl.cc), which ctest has the loader find.
#if TUTTI_HAS_CUDA
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tests/collectives/must.h"
#include "tests/collectives/processes.h"
#include "tests/device/device_buffers.h"

namespace tutti::testing::nccl_streams_test {
namespace {

using Value = std::uint32_t;
constexpr std::size_t kCount = 1000;
constexpr std::size_t kBytes = kCount * sizeof(Value);

std::byte* filled(DeviceBuffers& memory, Value value) {
  const std::vector<Value> values(kCount, value);
  std::byte* made = memory.allocate(kBytes);
  memory.write(made, std::as_bytes(std::span(values)));
  return made;
}

/// Returns the values of `result` when the caller's stream goes on after `start`, `times` times. The stream stands
/// still until the copy is in it, too.
void must_be_there(DeviceBuffers& memory, const std::byte* result, Value expected, int times,
                   const std::function<Work()>& start) {
  std::byte* copy = filled(memory, 0);
  for (int i = 0; i < times; ++i) {
    memory.hold();
    Work work = start();
    MUST(work.test());  // it is in the stream, which has not come to it
    must_cuda(memory.driver().MemcpyAsync(reinterpret_cast<CUdeviceptr>(copy), reinterpret_cast<CUdeviceptr>(result),
                                          kBytes, memory.stream()),
              "cuMemcpyAsync");
    memory.let_go();
    memory.must_hold<Value>(copy, kCount, [&](std::size_t) { return expected; });
    work.wait();
  }
}

class NcclStreams : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("FAKE_GPUS") == nullptr) GTEST_SKIP() << "tutti-test: not run: ctest says where the fake GPUs are";
  }
  static void run(const std::function<void(Communicator&, DeviceBuffers&)>& body) {
    expect_no_errors(run_processes(2,
                                   [&](Communicator& comm) {
                                     {
                                       DeviceBuffers memory(comm.rank());
                                       const auto context = device::enter(comm.rank());
                                       body(comm, memory);
                                     }
                                     comm = {};
                                     return std::string();
                                   },
                                   {{"TUTTI_BACKEND", "nccl"}}));
  }
};

TEST_F(NcclStreams, AStartedSumIsInItsStream) {
  run([](Communicator& comm, DeviceBuffers& memory) {
    std::byte* mine = filled(memory, static_cast<Value>(comm.rank()) + 1);
    std::byte* sum = filled(memory, 0);
    must_be_there(memory, sum, 3, 20, [&] {
      return comm.all_reduce_async(mine, sum, kCount, DataType::u32, ReduceOp::sum, {.stream = memory.stream()});
    });
  });
}

TEST_F(NcclStreams, AStartedGroupOfMessagesIsInItsStream) {
  run([](Communicator& comm, DeviceBuffers& memory) {
    const int peer = 1 - comm.rank();
    std::byte* mine = filled(memory, static_cast<Value>(comm.rank()) + 1);
    std::byte* theirs = filled(memory, 0);
    must_be_there(memory, theirs, static_cast<Value>(peer) + 1, 20, [&] {
      comm.group_start();
      comm.send(mine, kCount, DataType::u32, peer, 0, memory.stream());
      comm.recv(theirs, kCount, DataType::u32, peer, 0, nullptr, memory.stream());
      return comm.group_end_async();
    });
  });
}

// Host memory goes by way of the GPU, on the communicator's own thread; what comes after it waits for it.
TEST_F(NcclStreams, StartedCallsOnHostMemoryComeBefore) {
  run([](Communicator& comm, DeviceBuffers& memory) {
    std::byte* data = filled(memory, 1);
    std::vector<Value> host(kCount, 5);
    Work of_host = comm.all_reduce_async(host.data(), host.data(), kCount, DataType::u32);
    Work of_device =
        comm.all_reduce_async(data, data, kCount, DataType::u32, ReduceOp::sum, {.stream = memory.stream()});
    MUST(of_host.test());
    MUST(host[kCount - 1] == 10);
    memory.must_hold<Value>(data, kCount, [](std::size_t) { return 2; });
    of_device.wait();
  });
}

}  // namespace
}  // namespace tutti::testing::nccl_streams_test
#endif
