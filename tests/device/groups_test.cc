// Groups of collectives on device memory, ranks as threads, on a fake driver or the machine's: how many launches they
// take, which a fake driver counts, and that it makes no difference otherwise.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "collectives/executor/cuda/launch.h"
#include "tests/collectives/must.h"
#include "tests/collectives/ranks.h"
#include "tests/device/device_buffers.h"
#include "tests/support/test_gpus.h"

namespace tutti::testing::groups_test {
namespace {

using Value = std::uint32_t;
constexpr int kRanks = 3;

/// A rank's buffers of so many values each.
class Values {
 public:
  explicit Values(std::size_t count) : memory_(0), count_(count) {}

  CUstream stream() const { return memory_.stream(); }
  DeviceBuffers& memory() { return memory_; }
  Value* make(Value first = 0, Value step = 0) {
    auto* made = reinterpret_cast<Value*>(memory_.allocate(sizeof(Value) * count_));
    std::vector<Value> values(count_);
    for (std::size_t i = 0; i < count_; ++i) values[i] = first + step * static_cast<Value>(i);
    memory_.write(reinterpret_cast<std::byte*>(made), std::as_bytes(std::span(values)));
    return made;
  }
  /// Checks that the first `count` of them are those.
  void must_be(const Value* at, std::size_t count, const std::function<Value(std::size_t)>& expected) {
    memory_.must_hold(reinterpret_cast<const std::byte*>(at), count, expected);
  }

 private:
  DeviceBuffers memory_;
  const std::size_t count_;
};

/// Checks that each rank launches so many kernels in `body`, where they are counted.
void must_launch(TestGpus& gpus, Communicator& comm, int kernels, const std::function<void()>& body) {
  const auto counted = [&] { return gpus.fake() != nullptr ? gpus.fake()->calls("cuLaunchKernel") : 0; };
  comm.barrier();
  const int before = counted();
  comm.barrier();
  body();
  comm.barrier();
  const int after = counted();
  comm.barrier();
  MUST(gpus.fake() == nullptr || after - before == kRanks * kernels);
}

void in_group(Communicator& comm, const std::function<void()>& body) {
  comm.group_start();
  body();
  comm.group_end();
}

void open_memory(Communicator& comm, Values& values) {
  Value* data = values.make();
  comm.all_reduce(data, data, 1, DataType::u32, ReduceOp::max, {.stream = values.stream()});
}

TEST(DeviceGroups, MixedCallsAreOneLaunch) {
  TestGpus gpus;
  for (const std::size_t count : {7u, 5000u}) {  // data beside flags, and in slots and buffers
    expect_no_errors(run_threads(kRanks, [&](Communicator& comm) {
      Values values(count * kRanks);
      open_memory(comm, values);
      const auto me = static_cast<Value>(comm.rank());
      Value* mine = values.make(me * 1000000, 1);
      Value* sum = values.make();
      Value* gathered = values.make();
      Value* scattered = values.make();
      Value* told = values.make(me, 0);
      Value* exchanged = values.make();
      const CallOptions options{.stream = values.stream()};
      std::string reason;
      must_launch(gpus, comm, 1, [&] {
        in_group(comm, [&] {
          comm.all_reduce(mine, sum, count, DataType::u32, ReduceOp::sum, options);
          comm.all_gather(mine, gathered, count, DataType::u32, options);
          comm.reduce_scatter(mine, scattered, count, DataType::u32, ReduceOp::sum, options);
          comm.broadcast(told, told, count, DataType::u32, 2, options);
          comm.all_to_all(mine, exchanged, count, DataType::u32, options);
          comm.all_reduce(sum, sum, count, DataType::u32, ReduceOp::max, options);
        });
        reason = comm.explain_last_call().reason;
      });
      const auto all = [&](std::size_t i) { return static_cast<Value>(3000000 + 3 * i); };
      values.must_be(sum, count, all);
      values.must_be(gathered, count * kRanks,
                     [&](std::size_t i) { return static_cast<Value>(i / count * 1000000 + i % count); });
      values.must_be(scattered, count, [&](std::size_t i) { return all(me * count + i); });
      values.must_be(told, count, [](std::size_t) { return 2; });
      values.must_be(exchanged, count * kRanks,
                     [&](std::size_t i) { return static_cast<Value>(i / count * 1000000 + me * count + i % count); });
      MUST(reason.find("call 6 of a group of 6") != std::string::npos);
    }));
  }
}

TEST(DeviceGroups, MoreCallsThanFitIntoALaunch) {
  TestGpus gpus;
  expect_no_errors(run_threads(kRanks, [&](Communicator& comm) {
    Values values(3000);
    open_memory(comm, values);
    Value* data = values.make(1, 1);
    constexpr int kCalls = 2 * executor::cuda::kMostCalls + 3;
    must_launch(gpus, comm, 3, [&] {
      in_group(comm, [&] {
        for (int i = 0; i < kCalls; ++i) {  // each needs what the one before it has brought, in other blocks
          const std::size_t count = i % 2 == 0 ? 3000 : 10;
          comm.all_reduce(data, data, count, DataType::u32, ReduceOp::sum, {.stream = values.stream()});
        }
      });
    });
    const auto power = [](int n) {
      Value p = 1;
      while (n-- > 0) p *= kRanks;
      return p;
    };
    values.must_be(data, 3000, [&](std::size_t i) {
      return static_cast<Value>(i + 1) * power(i < 10 ? kCalls : (kCalls + 1) / 2);
    });
  }));
}

TEST(DeviceGroups, AKernelForEachTypeThatIsReduced) {
  TestGpus gpus;
  expect_no_errors(run_threads(kRanks, [&](Communicator& comm) {
    Values values(100 * kRanks);
    open_memory(comm, values);
    Value* integers = values.make(1, 1);
    Value* floats = values.make();  // 0.0
    Value* gathered = values.make();
    const CallOptions options{.stream = values.stream()};
    must_launch(gpus, comm, 2, [&] {
      in_group(comm, [&] {
        comm.all_gather(integers, gathered, 100, DataType::u32, options);
        comm.all_reduce(floats, floats, 100, DataType::f32, ReduceOp::sum, options);
        comm.broadcast(floats, floats, 100, DataType::f32, 0, options);
        comm.all_reduce(integers, integers, 100, DataType::u32, ReduceOp::sum, options);
        comm.all_gather(integers, gathered, 50, DataType::u32, options);
      });
    });
    values.must_be(floats, 100, [](std::size_t) { return 0; });
    values.must_be(integers, 100, [](std::size_t i) { return static_cast<Value>(kRanks * (i + 1)); });
    values.must_be(gathered, 100, [](std::size_t i) { return static_cast<Value>(kRanks * (i % 50 + 1)); });
  }));
}

TEST(DeviceGroups, SeveralStreamsAndCallsThatStandAlone) {
  TestGpus gpus;
  expect_no_errors(run_threads(kRanks, [&](Communicator& comm) {
    Values values(1000);
    Values others(1000);  // with a stream of their own
    open_memory(comm, values);
    Value* data = values.make(1, 1);
    Value* to = values.make();
    const std::vector<std::size_t> counts(kRanks, 5);
    const std::vector<std::size_t> offsets{0, 5, 10};
    float host = 1;
    in_group(comm, [&] {
      const CallOptions here{.stream = values.stream()};
      const CallOptions there{.stream = others.stream()};
      comm.all_reduce(data, data, 1000, DataType::u32, ReduceOp::sum, here);
      comm.all_reduce(data, data, 0, DataType::u32, ReduceOp::sum, here);
      comm.all_reduce(data, data, 1000, DataType::u32, ReduceOp::sum, there);
      comm.all_reduce(data, data, 1000, DataType::u32, ReduceOp::sum, there);
      comm.all_to_allv(data, counts.data(), offsets.data(), to, counts.data(), offsets.data(), DataType::u32, here);
      comm.all_reduce(&host, &host, 1, DataType::f32);  // host memory is not noted
      MUST(host == kRanks);
    });
    const auto me = static_cast<std::size_t>(comm.rank());
    values.must_be(to, 15, [&](std::size_t i) { return static_cast<Value>(27 * (5 * me + i % 5 + 1)); });
  }));
}

TEST(DeviceGroups, CollectivesComeBeforeMessages) {
  TestGpus gpus;
  expect_no_errors(run_threads(kRanks, [&](Communicator& comm) {
    Values values(1000);
    open_memory(comm, values);
    const int next = (comm.rank() + 1) % kRanks;
    const int previous = (comm.rank() + kRanks - 1) % kRanks;
    Value* data = values.make(static_cast<Value>(comm.rank()), 1);
    Value* from = values.make();
    in_group(comm, [&] {
      comm.recv(from, 1000, DataType::u32, previous, 0, nullptr, values.stream());
      comm.send(data, 1000, DataType::u32, next, 0, values.stream());
      comm.all_reduce(data, data, 1000, DataType::u32, ReduceOp::max, {.stream = values.stream()});
      comm.all_reduce(data, data, 1000, DataType::u32, ReduceOp::sum, {.stream = values.stream()});
    });
    values.must_be(from, 1000, [](std::size_t i) { return static_cast<Value>(kRanks * (i + kRanks - 1)); });
  }));
}

TEST(DeviceGroups, CapturedAndReplayed) {
  TestGpus gpus;
  expect_no_errors(run_threads(kRanks, [&](Communicator& comm) {
    Values values(2000);
    open_memory(comm, values);
    Value* small = values.make(1, 0);
    Value* large = values.make(1, 0);
    std::unique_ptr<DeviceGraph> graph;
    must_launch(gpus, comm, 1, [&] {
      graph = std::make_unique<DeviceGraph>(values.memory(), [&] {
        in_group(comm, [&] {
          comm.all_reduce(small, small, 20, DataType::u32, ReduceOp::sum, {.stream = values.stream()});
          comm.all_reduce(large, large, 2000, DataType::u32, ReduceOp::sum, {.stream = values.stream()});
        });
      });
    });
    for (int i = 0; i < 4; ++i) graph->launch();
    values.memory().synchronize();
    values.must_be(small, 20, [](std::size_t) { return 81; });
    values.must_be(large, 2000, [](std::size_t) { return 81; });
    MUST(comm.status() == Code::ok);
  }));
}

TEST(DeviceGroups, OneWrongCallLetsNoneRun) {
  NEEDS_GPUS(2);
  TestGpus gpus({.devices = 2});
  expect_no_errors(run_threads(kRanks, [&](Communicator& comm) {
    Values values(100);
    DeviceBuffers elsewhere(1);
    auto* there = reinterpret_cast<Value*>(elsewhere.allocate(400));
    open_memory(comm, values);
    Value* data = values.make(1, 0);
    float host[100] = {};
    const CallOptions options{.stream = values.stream()};
    const auto refused = [&](const char* words, const std::function<void()>& wrong) {
      must_launch(gpus, comm, 0, [&] {
        try {
          in_group(comm, [&] {
            comm.all_reduce(data, data, 100, DataType::u32, ReduceOp::sum, options);
            wrong();
            comm.all_reduce(data, data, 100, DataType::u32, ReduceOp::sum, options);
          });
        } catch (const Error& error) {
          MUST(error.code() == Code::invalid_argument);
          MUST(std::string(error.what()).find(words) != std::string::npos);
          return;
        }
        MUST(false);
      });
    };
    refused("root is 7", [&] { comm.broadcast(data, data, 100, DataType::u32, 7, options); });
    refused("expected both in the same memory",
            [&] { comm.all_reduce(data, host, 100, DataType::u32, ReduceOp::sum, options); });
    refused("GPU 1", [&] { comm.all_reduce(there, there, 100, DataType::u32, ReduceOp::sum, options); });
    refused("counts or offsets are null",
            [&] { comm.all_to_allv(data, nullptr, nullptr, data, nullptr, nullptr, DataType::u32, options); });
    comm.all_reduce(data, data, 100, DataType::u32, ReduceOp::sum, options);
    values.must_be(data, 100, [](std::size_t) { return kRanks; });
  }));
}

TEST(DeviceGroups, ACallThatDiffersInAGroupIsNamed) {
  TestGpus gpus;
  const auto errors = run_threads(kRanks, [&](Communicator& comm) {
    Values values(5000);
    open_memory(comm, values);
    Value* data = values.make(1, 0);
    in_group(comm, [&] {
      for (std::size_t i = 0; i < 6; ++i) {
        const std::size_t count = i == 3 && comm.rank() == 1 ? 4999 : 5000 - i;
        comm.all_reduce(data, data, count, DataType::u32, ReduceOp::sum, {.stream = values.stream()});
      }
    });
    std::string told;
    while (comm.status(&told) == Code::ok) std::this_thread::yield();
    values.memory().synchronize();  // the kernels have ended
    throw std::runtime_error(told);
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("called all_reduce(4999 x u32, sum) as its call 5"), std::string::npos) << error;
    EXPECT_NE(error.find("called all_reduce(4997 x u32, sum) as its call 5"), std::string::npos) << error;
  }
}

TEST(DeviceGroups, ADriverThatRefusesALaunchFailsTheCommunicator) {
  NEEDS_FAKE_DRIVER("it refuses a launch");
  TestGpus gpus;
  const auto errors = run_threads(kRanks, [&](Communicator& comm) {
    Values values(100);
    open_memory(comm, values);
    Value* data = values.make(1, 0);
    values.memory().synchronize();
    comm.barrier();
    if (comm.rank() == 1) gpus.fake()->fail("cuLaunchKernel", CUDA_ERROR_LAUNCH_FAILED);
    comm.barrier();
    std::string told;
    try {
      in_group(comm, [&] {
        for (int i = 0; i < 3; ++i) {
          comm.all_reduce(data, data, 100, DataType::u32, ReduceOp::sum, {.stream = values.stream()});
        }
      });
      while (comm.status(&told) == Code::ok) std::this_thread::yield();
    } catch (const Error& error) {
      told = error.what();
    }
    values.memory().synchronize();
    throw std::runtime_error(told);
  });
  for (const std::string& error : errors) EXPECT_NE(error.find("cuLaunchKernel failed"), std::string::npos) << error;
}

}  // namespace
}  // namespace tutti::testing::groups_test
