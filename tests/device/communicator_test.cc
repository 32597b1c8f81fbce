// Device memory from the API down to the walkers, ranks as threads, on a fake driver or the machine's.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/collectives/must.h"
#include "tests/collectives/ranks.h"
#include "tests/device/device_buffers.h"
#include "tests/device/host_reference.h"
#include "tests/support/test_gpus.h"
#include "tutti/tutti.h"

namespace tutti::testing::communicator_test {
namespace {

class DeviceCommunicator : public ::testing::TestWithParam<int> {};

TEST_P(DeviceCommunicator, HasTheBitsOfTheHost) {
  TestGpus gpus;
  expect_no_errors(run_threads(GetParam(), [](Communicator& comm) {
    DeviceBuffers memory(0);
    compare_with_host(comm, memory, 5);
  }));
  if (gpus.fake() != nullptr) {
    EXPECT_LE(gpus.fake()->resident_most(0), 32);
  }
}

TEST_P(DeviceCommunicator, RanksOnGpusOfTheirOwn) {
  NEEDS_GPUS(GetParam());
  TestGpus gpus({.devices = GetParam()});
  expect_no_errors(run_threads(GetParam(), [](Communicator& comm) {
    DeviceBuffers memory(comm.rank());
    compare_with_host(comm, memory, 6);
  }));
}

INSTANTIATE_TEST_SUITE_P(Ranks, DeviceCommunicator, ::testing::Values(2, 3, 4));

// Messages go by kernels from the first one on then.
TEST(DeviceCalls, TheCApiOpensDevices) {
  TestGpus gpus;
  EXPECT_EQ(tutti_comm_open_device(nullptr, 0), TUTTI_INVALID_ARGUMENT);
  tutti_comm_t comms[2] = {};
  ASSERT_EQ(tutti_comm_create_in_process(2, nullptr, comms), TUTTI_OK) << tutti_last_error();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([rank, comm = comms[rank]] {
      DeviceBuffers memory(0);
      std::byte* data = memory.allocate(400);
      memory.write(data, std::vector<std::byte>(400, std::byte(rank == 0 ? 7 : 0)));
      EXPECT_EQ(tutti_comm_open_device(comm, 0), TUTTI_OK) << tutti_last_error();
      EXPECT_EQ(rank == 0 ? tutti_send_on(comm, data, 400, TUTTI_U8, 1, memory.stream())
                          : tutti_recv_on(comm, data, 400, TUTTI_U8, 0, memory.stream()),
                TUTTI_OK)
          << tutti_last_error();
      EXPECT_EQ(memory.read(data, 400), std::vector<std::byte>(400, std::byte{7}));
      tutti_comm_destroy(comm);
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (gpus.fake() != nullptr) {
    EXPECT_EQ(gpus.fake()->calls("cuLaunchKernel"), 2);
  }
}

TEST(DeviceCalls, ManyAreInTheStreamAtATime) {
  TestGpus gpus;
  expect_no_errors(run_threads(3, [](Communicator& comm) {
    DeviceBuffers memory(0);
    std::vector<float> ones(100, 1.0F);
    auto* data = reinterpret_cast<float*>(memory.allocate(400));
    memory.write(reinterpret_cast<std::byte*>(data), std::as_bytes(std::span(ones)));
    for (int i = 0; i < 12; ++i) {
      comm.all_reduce(data, data, 100, DataType::f32, ReduceOp::sum, {.stream = memory.stream()});
    }
    const std::vector<std::byte> bytes = memory.read(reinterpret_cast<std::byte*>(data), 400);
    float first = 0;
    std::memcpy(&first, bytes.data(), sizeof(first));
    MUST(first == 531441.0F);  // 3^12
    MUST(comm.status() == Code::ok);
  }));
}

TEST(DeviceCalls, KernelsAreLoadedOnce) {
  NEEDS_FAKE_DRIVER("it counts the driver's calls");
  TestGpus gpus;
  expect_no_errors(run_threads(2, [&gpus](Communicator& comm) {
    comm.open_device(0);
    comm.barrier();
    MUST(gpus.fake()->calls("cuLibraryLoadData") == 1);
    comm.barrier();
  }));
}

// The stream stands still, with the call in it: neither the abort nor the end of the communicator waits for it, and the
// call finds all that it touches when its turn has come.
TEST(DeviceCalls, TheEndOfAFailedCommunicatorWaitsForNoStream) {
  TestGpus gpus;
  Options options;
  options.timeout = std::chrono::hours(1);
  expect_no_errors(run_threads(
      2,
      [](Communicator& comm) {
        DeviceBuffers memory(0);
        std::byte* data = memory.allocate(4 * 5000);
        comm.all_reduce(data, data, 5000, DataType::u32, ReduceOp::sum, {.stream = memory.stream()});
        memory.synchronize();
        memory.hold();
        comm.all_reduce(data, data, 5000, DataType::u32, ReduceOp::sum, {.stream = memory.stream()});
        try {
          comm.barrier();
          comm.abort("enough of it");
        } catch (const Error&) {  // the other one has done so
        }
        comm = {};
        memory.let_go();
        memory.synchronize();
      },
      options));
}

TEST(DeviceCalls, OnOtherStreamsStillInOrder) {
  TestGpus gpus;
  expect_no_errors(run_threads(2, [](Communicator& comm) {
    DeviceBuffers memory(0);
    DeviceBuffers other(0);  // with a stream of its own
    auto* data = reinterpret_cast<std::uint32_t*>(memory.allocate(4 * 3000));
    const std::vector<std::uint32_t> ones(3000, 1);
    memory.write(reinterpret_cast<std::byte*>(data), std::as_bytes(std::span(ones)));
    for (int i = 0; i < 10; ++i) {
      Stream stream = i % 2 == 0 ? memory.stream() : other.stream();
      comm.all_reduce(data, data, 3000, DataType::u32, ReduceOp::sum, {.stream = stream});
    }
    other.synchronize();
    const std::vector<std::byte> bytes = memory.read(reinterpret_cast<std::byte*>(data), 4 * 3000);
    std::uint32_t last = 0;
    std::memcpy(&last, bytes.data() + 4 * 2999, sizeof(last));
    MUST(last == 1024);
  }));
}

TEST(DeviceCalls, CapturedAndReplayed) {
  TestGpus gpus;
  expect_no_errors(run_threads(3, [](Communicator& comm) {
    DeviceBuffers memory(0);
    std::byte* small = memory.allocate(4 * 64);
    std::byte* large = memory.allocate(4 * 50000);
    const std::vector<std::uint32_t> ones(50000, 1);
    memory.write(small, std::as_bytes(std::span(ones).first(64)));
    memory.write(large, std::as_bytes(std::span(ones)));
    DeviceGraph graph(memory, [&] {
      comm.all_reduce(small, small, 64, DataType::u32, ReduceOp::sum, {.stream = memory.stream()});
      comm.all_reduce(large, large, 50000, DataType::u32, ReduceOp::sum, {.stream = memory.stream()});
    });
    for (int i = 0; i < 5; ++i) graph.launch();
    memory.synchronize();
    comm.all_reduce(small, small, 64, DataType::u32, ReduceOp::sum, {.stream = memory.stream()});
    std::uint32_t got = 0;
    std::memcpy(&got, memory.read(small, 256).data() + 252, 4);
    MUST(got == 729);  // 3^6
    std::memcpy(&got, memory.read(large, 200000).data() + 199996, 4);
    MUST(got == 243);
  }));
}

TEST(DeviceCalls, AllToAllv) {
  TestGpus gpus;
  for (const std::size_t unit : {3u, 3000u}) {
    expect_no_errors(run_threads(3, [unit](Communicator& comm) {
      DeviceBuffers memory(0);
      for (int turn = 0; turn < 3; ++turn) check_all_to_allv(comm, memory, unit);
    }));
  }
}

void open_memory(Communicator& comm, DeviceBuffers& memory) {
  std::byte* data = memory.allocate(16);
  comm.all_reduce(data, data, 4, DataType::i32, ReduceOp::max, {.stream = memory.stream()});
}

TEST(DeviceCalls, Messages) {
  TestGpus gpus;
  expect_no_errors(run_threads(3, [](Communicator& comm) {
    DeviceBuffers memory(0);
    open_memory(comm, memory);
    const int n = comm.size();
    const auto me = static_cast<std::uint32_t>(comm.rank());
    // Every rank sends every rank, itself too, several messages of several sizes, in one group; twice.
    const std::size_t counts[] = {5, 0, 20001, 300000, 1};
    constexpr std::size_t kTotal = 5 + 20001 + 300000 + 1;
    std::byte* out = memory.allocate(4 * kTotal * static_cast<std::size_t>(n));
    std::byte* in = memory.allocate(4 * kTotal * static_cast<std::size_t>(n));
    std::vector<std::uint32_t> numbers(kTotal * static_cast<std::size_t>(n));
    for (std::uint32_t turn = 0; turn < 2; ++turn) {
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        numbers[i] = turn * 17 + me * 1000003 + static_cast<std::uint32_t>(i);
      }
      memory.write(out, std::as_bytes(std::span(numbers)));
      comm.group_start();
      for (int peer = 0; peer < n; ++peer) {
        std::size_t at = static_cast<std::size_t>(peer) * kTotal;
        for (const std::size_t count : counts) {
          comm.send(out + 4 * at, count, DataType::u32, peer, 0, memory.stream());
          comm.recv(in + 4 * at, count, DataType::u32, peer, 0, nullptr, memory.stream());
          at += count;
        }
      }
      comm.group_end();
      const std::vector<std::byte> got = memory.read(in, 4 * numbers.size());
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        std::uint32_t value = 0;
        std::memcpy(&value, got.data() + 4 * i, 4);
        MUST(value == turn * 17 + i / kTotal * 1000003 + me * kTotal + i % kTotal);
      }
    }
    // A chain of single messages, which no group holds together.
    if (me > 0) comm.recv(in, 70000, DataType::u32, static_cast<int>(me) - 1, 0, nullptr, memory.stream());
    if (me == 0) memory.write(in, std::as_bytes(std::span(numbers).first(70000)));
    if (static_cast<int>(me) + 1 < n) comm.send(in, 70000, DataType::u32, static_cast<int>(me) + 1, 0, memory.stream());
    std::uint32_t last = 0;
    std::memcpy(&last, memory.read(in + 4 * 69999, 4).data(), 4);
    MUST(last == 17 + 69999);
    comm.all_reduce(in, in, 10, DataType::u32, ReduceOp::sum, {.stream = memory.stream()});
    memory.synchronize();
    MUST(comm.status() == Code::ok);
  }));
}

TEST(DeviceCalls, AMessageOfAnotherSizeIsNamed) {
  TestGpus gpus;
  const auto errors = run_threads(2, [](Communicator& comm) {
    DeviceBuffers memory(0);
    open_memory(comm, memory);
    std::byte* data = memory.allocate(4000000);
    if (comm.rank() == 0) comm.send(data, 1000, DataType::f32, 1, 0, memory.stream());
    if (comm.rank() == 1) comm.recv(data, 900000, DataType::f32, 0, 0, nullptr, memory.stream());
    std::string told;
    while (comm.status(&told) == Code::ok) std::this_thread::yield();
    memory.synchronize();
    throw std::runtime_error(told);
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("sends 1000 x f32 to rank 1"), std::string::npos) << error;
    EXPECT_NE(error.find("which receives 900000 x f32"), std::string::npos) << error;
  }
}

TEST(DeviceCalls, WhatMessagesCannotHaveIsRefused) {
  TestGpus gpus;
  expect_no_errors(run_threads(2, [](Communicator& comm) {
    DeviceBuffers memory(0);
    std::byte* data = memory.allocate(64);
    float host[4] = {};
    const auto refused = [&](const std::function<void()>& call, const char* words) {
      try {
        call();
      } catch (const Error& error) {
        MUST(error.code() == Code::invalid_argument);
        MUST(std::string(error.what()).find(words) != std::string::npos);
        return;
      }
      MUST(false);
    };
    const int peer = 1 - comm.rank();
    open_memory(comm, memory);
    refused([&] { comm.send(data, 4, DataType::f32, peer, 7, memory.stream()); }, "with tag 7");
    refused([&] { comm.recv(data, 4, DataType::f32, kAnySource, 0, nullptr, memory.stream()); }, "with any source");
    refused(
        [&] {
          comm.group_start();
          comm.send(data, 4, DataType::f32, peer, 0, memory.stream());
          comm.recv(host, 4, DataType::f32, peer, 0, nullptr, memory.stream());
          comm.group_end();
        },
        "expected one of the two");
    memory.synchronize();
  }));
}

TEST(DeviceCalls, KindsAreNotMixed) {
  NEEDS_GPUS(2);
  TestGpus gpus({.devices = 2});
  expect_no_errors(run_threads(2, [](Communicator& comm) {
    DeviceBuffers memory(0);
    DeviceBuffers elsewhere(1);
    std::byte* here = memory.allocate(64);
    float host[16] = {};
    const auto refused = [&](const void* send, void* recv, const char* words) {
      try {
        comm.all_reduce(send, recv, 16, DataType::f32, ReduceOp::sum, {.stream = memory.stream()});
      } catch (const Error& error) {
        MUST(error.code() == Code::invalid_argument);
        MUST(std::string(error.what()).find(words) != std::string::npos);
        return;
      }
      MUST(false);
    };
    refused(here, host, "expected both in the same memory");
    refused(host, here, "expected both in the same memory");
    comm.all_reduce(here, here, 16, DataType::f32, ReduceOp::sum, {.stream = memory.stream()});
    std::byte* there = elsewhere.allocate(64);
    refused(there, there, "its communicator is on GPU 0");
    comm.all_reduce(host, host, 16, DataType::f32);  // and host memory goes on working
    memory.synchronize();
  }));
}

TEST(DeviceCalls, RanksOnOneGpuNeedStreamsOfTheirOwn) {
  TestGpus gpus;
  const auto errors = run_threads(
      2,
      [](Communicator& comm) {
        DeviceBuffers memory(0);
        std::byte* data = memory.allocate(64);
        comm.barrier();
        for (int turn = 0; turn < 2; ++turn) {  // the second rank gets the error, once both have come
          comm.all_reduce(data, data, 16, DataType::f32, ReduceOp::sum, {.stream = nullptr});
          comm.barrier();
        }
      },
      [] {
        Options options;
        options.timeout = std::chrono::seconds(5);
        return options;
      }());
  const auto told = std::count_if(errors.begin(), errors.end(), [](const std::string& error) {
    return error.find("uses the same stream as") != std::string::npos;
  });
  EXPECT_GE(told, 1) << errors[0] << "; " << errors[1];
}

// A handle that all threads use, and each for another stream. What a rank has used before does not count.
TEST(DeviceCalls, EachThreadHasADefaultStreamOfItsOwn) {
  TestGpus gpus;
  DeviceBuffers shared(0);
  expect_no_errors(run_threads(2, [&shared](Communicator& comm) {
    DeviceBuffers memory(0);
    const auto context = device::enter(0);
    auto* data = reinterpret_cast<std::uint32_t*>(memory.allocate(4 * 3000));
    const std::vector<std::uint32_t> ones(3000, 1);
    memory.write(reinterpret_cast<std::byte*>(data), std::as_bytes(std::span(ones)));
    for (int turn = 0; turn < 3; ++turn) {  // first rank 0, then none, then rank 1 is on the stream that both know
      const bool on_shared = (turn == 0 && comm.rank() == 0) || (turn == 2 && comm.rank() == 1);
      const CUstream stream = on_shared ? shared.stream() : CU_STREAM_PER_THREAD;
      comm.group_start();
      comm.all_reduce(data, data, 3000, DataType::u32, ReduceOp::sum, {.stream = stream});
      comm.all_reduce(data, data, 3000, DataType::u32, ReduceOp::sum, {.stream = stream});
      comm.group_end();
      comm.group_start();
      comm.send(data, 1000, DataType::u32, 1 - comm.rank(), 0, stream);
      comm.recv(data + 1000, 1000, DataType::u32, 1 - comm.rank(), 0, nullptr, stream);
      comm.group_end();
      must_cuda(memory.driver().StreamSynchronize(stream), "cuStreamSynchronize");
      comm.barrier();
    }
    memory.must_hold<std::uint32_t>(reinterpret_cast<std::byte*>(data), 3000, [](std::size_t) { return 64; });  // 4^3
    MUST(comm.status() == Code::ok);
  }));
}

TEST(DeviceCalls, TheDefaultStreamOfAThreadIsOneForAllItsRanks) {
  TestGpus gpus;
  std::vector<Communicator> ranks = Communicator::in_process(2);
  std::vector<std::thread> threads;
  for (Communicator& comm : ranks) threads.emplace_back([&comm] { comm.open_device(0); });
  for (std::thread& thread : threads) thread.join();
  DeviceBuffers memory(0);
  std::byte* data = memory.allocate(128);
  const auto sum = [&](Communicator& comm, std::byte* at) {
    comm.all_reduce(at, at, 16, DataType::f32, ReduceOp::sum, {.stream = CU_STREAM_PER_THREAD});
  };
  sum(ranks[0], data);
  std::string told;
  try {
    sum(ranks[1], data + 64);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::invalid_argument);
    told = error.what();
  }
  EXPECT_NE(told.find("rank 1 ("), std::string::npos) << told;
  EXPECT_NE(told.find("uses the same stream as rank 0 ("), std::string::npos) << told;
  ranks[0].abort("its partner does not come");
}

// Windows, tables and programs of all ranks, and what the host takes for messages that go through it.
TEST(DeviceCalls, MemoryLimitCountsAllThatARankTakes) {
  NEEDS_FAKE_DRIVER("it tells what has been allocated");
  constexpr std::size_t kLimit = std::size_t{8} << 20;
  Options options;
  options.memory_limit = kLimit;
  for (const int ranks : {2, 3}) {
    TestGpus gpus;
    expect_no_errors(run_threads(
        ranks,
        [&gpus](Communicator& comm) {
          const std::size_t host = comm.memory().scratch;
          comm.open_device(0);
          comm.barrier();
          const std::size_t taken = gpus.fake()->allocated(0);
          MUST(taken <= static_cast<std::size_t>(comm.size()) * kLimit);
          MUST(taken >= static_cast<std::size_t>(comm.size()) * kLimit / 4);
          const std::size_t told = comm.memory().scratch - host;
          MUST(told <= kLimit && told * static_cast<std::size_t>(comm.size()) >= taken);
          comm.barrier();
          DeviceBuffers memory(0);
          compare_with_host(comm, memory, 8);
        },
        options));
  }
}

TEST(DeviceCalls, ALimitThatIsTooSmallIsTold) {
  TestGpus gpus;
  Options options;
  options.memory_limit = std::size_t{1} << 20;
  expect_no_errors(run_threads(
      2,
      [](Communicator& comm) {
        DeviceBuffers memory(0);
        std::string told;
        try {
          open_memory(comm, memory);
        } catch (const Error& error) {
          MUST(error.code() == Code::memory_limit);
          told = error.what();
        }
        MUST(told.find("a communicator of 2 ranks takes at least") != std::string::npos);
        MUST(told.find("bytes of each one's GPU memory; memory_limit leaves 1048576") != std::string::npos);
        comm.barrier();  // and host memory goes on working
      },
      options));
}

TEST(DeviceCalls, MessagesThroughTheHostStayWithinTheLimit) {
  TestGpus gpus;
  constexpr std::size_t kLimit = std::size_t{8} << 20;
  Options options;
  options.memory_limit = kLimit;
  expect_no_errors(run_threads(
      2,
      [](Communicator& comm) {
        DeviceBuffers memory(0);
        const std::size_t host = comm.memory().scratch;
        std::byte* data = memory.allocate(kLimit);
        const auto pass_on = [&](std::size_t bytes) {
          if (comm.rank() == 0) comm.send(data, bytes, DataType::u8, 1, 0, memory.stream());
          if (comm.rank() == 1) comm.recv(data, bytes, DataType::u8, 0, 0, nullptr, memory.stream());
          memory.synchronize();
        };
        const auto taken = [&] { return comm.memory().scratch - host; };
        for (const std::size_t bytes : {100u, 1u << 20, 3u << 20}) {
          pass_on(bytes);
          MUST(taken() <= kLimit);
        }
        std::string told;
        try {
          pass_on(std::size_t{7} << 20);
        } catch (const Error& error) {
          MUST(error.code() == Code::memory_limit);
          told = error.what();
        }
        MUST(told.find("groups messages of 7340032 bytes on device memory") != std::string::npos);
        MUST(told.find("memory_limit is 8388608, of which") != std::string::npos);
        MUST(taken() <= kLimit);
        pass_on(100);
      },
      options));
}

}  // namespace
}  // namespace tutti::testing::communicator_test
