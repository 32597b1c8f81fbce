// Device memory in jobs of several hosts (TUTTI_HOST_ID; over this machine's own interfaces), with ranks as processes,
// each with a fake driver of its own or all on the machine's: what goes through pinned memory has the bits of the host,
// in the order of the stream.
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

namespace tutti::testing::remote_processes_test {
namespace {

using Hosts = std::vector<std::string>;
using Value = std::uint32_t;

const Hosts kPlacements[] = {{"a", "b"}, {"a", "a", "b"}, {"a", "b", "c", "a"}};
// Slots of 512 KiB, so that calls of some size take several turns.
const Environment kSmallSlots = {{"TUTTI_MEMORY_LIMIT", "8M"}, {"TUTTI_SCRATCH", "256K"}};

class RemoteDevice : public ::testing::TestWithParam<Hosts> {
 protected:
  void SetUp() override { NEEDS_NETWORK(); }
  /// `body` with a GPU, a stream and a communicator.
  static std::vector<Outcome> run(const std::function<std::string(Communicator&, DeviceBuffers&)>& body,
                                  Environment environment = {}, const FakeMachine& machine = {.devices = 2}) {
    // UCX's hooks would run at the end of each of a fake driver's threads, where ThreadSanitizer has left already.
    environment["UCX_MEM_EVENTS"] = "n";
    return run_processes(
        static_cast<int>(GetParam().size()),
        [&](Communicator& comm) {
          TestGpus gpus(machine);
          std::string said;
          {
            DeviceBuffers memory(0);
            said = body(comm, memory);
          }
          comm = {};
          return said;
        },
        environment, {}, GetParam());
  }
};

Value number(int rank, std::size_t i) { return static_cast<Value>(rank) * 104729 + static_cast<Value>(i) * 31 + 1; }

std::byte* filled(DeviceBuffers& memory, int rank, std::size_t count) {
  std::vector<Value> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = number(rank, i);
  std::byte* made = memory.allocate(sizeof(Value) * count);
  memory.write(made, std::as_bytes(std::span(values)));
  return made;
}

Value sum_of(int ranks, std::size_t i) {
  Value sum = 0;
  for (int r = 0; r < ranks; ++r) sum += number(r, i);
  return sum;
}

void add_up(Communicator& comm, std::byte* data, std::size_t count, CUstream stream) {
  comm.all_reduce(data, data, count, DataType::u32, ReduceOp::sum, {.stream = stream});
}

TEST_P(RemoteDevice, HasTheBitsOfTheHost) {
  for (const Environment& environment : {Environment{}, kSmallSlots}) {
    expect_no_errors(run(
        [](Communicator& comm, DeviceBuffers& memory) {
          compare_with_host(comm, memory, 8);
          return std::string();
        },
        environment));
  }
}

TEST_P(RemoteDevice, LargeCallsTakeTurns) {
  const auto outcomes = run(
      [](Communicator& comm, DeviceBuffers& memory) {
        const auto n = static_cast<std::size_t>(comm.size());
        constexpr std::size_t kCount = 700'001;  // 2.8 MB: 6 slots
        std::byte* mine = filled(memory, comm.rank(), kCount);
        std::byte* all = memory.allocate(sizeof(Value) * kCount * n);
        comm.all_gather(mine, all, kCount, DataType::u32, {.stream = memory.stream()});
        memory.must_hold<Value>(all, kCount * n,
                                [&](std::size_t i) { return number(static_cast<int>(i / kCount), i % kCount); });
        comm.all_reduce(mine, all, kCount, DataType::u32, ReduceOp::sum, {.stream = memory.stream()});
        memory.must_hold<Value>(all, kCount, [&](std::size_t i) { return sum_of(comm.size(), i); });
        MUST(comm.memory().scratch >= std::size_t{4} << 20);
        return comm.explain_last_call().reason;
      },
      kSmallSlots);
  expect_no_errors(outcomes);
  EXPECT_NE(outcomes[0].said.find("through pinned memory, in 6 fragment(s)"), std::string::npos) << outcomes[0].said;
}

// The caller goes on while its stream has not come to the calls; they then see what was put into the stream before.
TEST_P(RemoteDevice, InTheOrderOfTheStream) {
  expect_no_errors(run([](Communicator& comm, DeviceBuffers& memory) {
    DeviceBuffers other(0);
    constexpr std::size_t kCount = 3000;
    std::byte* from = filled(memory, comm.rank(), kCount);
    std::byte* data = memory.allocate(sizeof(Value) * kCount);
    memory.hold();
    {
      const auto context = device::enter(0);
      must_cuda(memory.driver().MemcpyAsync(reinterpret_cast<CUdeviceptr>(data), reinterpret_cast<CUdeviceptr>(from),
                                            sizeof(Value) * kCount, memory.stream()),
                "cuMemcpyAsync");
    }
    for (int i = 0; i < 8; ++i) add_up(comm, data, kCount, i % 2 == 0 ? memory.stream() : other.stream());
    MUST(comm.status() == Code::ok);
    memory.let_go();
    Value factor = 1;
    for (int i = 1; i < 8; ++i) factor *= static_cast<Value>(comm.size());
    other.synchronize();
    memory.must_hold<Value>(data, kCount, [&](std::size_t i) { return sum_of(comm.size(), i) * factor; });
    return std::string();
  }));
}

TEST_P(RemoteDevice, GroupsAndCallsOnHostMemoryBetween) {
  expect_no_errors(run([](Communicator& comm, DeviceBuffers& memory) {
    std::byte* data = filled(memory, comm.rank(), 500);
    comm.group_start();
    add_up(comm, data, 500, memory.stream());
    add_up(comm, data, 0, memory.stream());
    add_up(comm, data, 100, memory.stream());
    comm.group_end();
    int ranks = 1;
    comm.all_reduce(&ranks, &ranks, 1, DataType::i32);
    MUST(ranks == comm.size());
    comm.all_reduce_async(data, data, 100, DataType::u32, ReduceOp::max, {.stream = memory.stream()}).wait();
    memory.must_hold<Value>(data, 500, [&](std::size_t i) {
      return sum_of(comm.size(), i) * static_cast<Value>(i < 100 ? comm.size() : 1);
    });
    return std::string();
  }));
}

TEST_P(RemoteDevice, AllToAllv) {
  for (const std::size_t unit : {3u, 50'000u}) {
    expect_no_errors(run(
        [unit](Communicator& comm, DeviceBuffers& memory) {
          const auto n = static_cast<std::size_t>(comm.size());
          const auto me = static_cast<std::size_t>(comm.rank());
          // Rank i has (i + 2 j) % 5 units for rank j; the last rank has nothing, and gets nothing.
          const auto units = [&](std::size_t i, std::size_t j) {
            return i + 1 == n || j + 1 == n ? 0 : (i + 2 * j) % 5 * unit;
          };
          std::vector<std::size_t> send_counts, send_offsets, recv_counts, recv_offsets;
          std::size_t sent = 0;
          std::size_t received = 0;
          for (std::size_t r = 0; r < n; ++r) {
            send_counts.push_back(units(me, r));
            recv_counts.push_back(units(r, me));
            send_offsets.push_back(sent);
            recv_offsets.push_back(received);
            sent += send_counts.back();
            received += recv_counts.back();
          }
          const bool none = me + 1 == n;
          std::byte* send = none ? nullptr : filled(memory, comm.rank(), sent + 1);
          std::byte* recv = none ? nullptr : memory.allocate(sizeof(Value) * (received + 1));
          for (int turn = 0; turn < 2; ++turn) {
            comm.all_to_allv(send, send_counts.data(), send_offsets.data(), recv, recv_counts.data(),
                             recv_offsets.data(), DataType::u32, {.stream = memory.stream()});
            for (std::size_t r = 0; !none && r < n; ++r) {
              std::size_t begin = 0;  // of what r has for me
              for (std::size_t j = 0; j < me; ++j) begin += units(r, j);
              memory.must_hold<Value>(recv + sizeof(Value) * recv_offsets[r], recv_counts[r],
                                      [&](std::size_t i) { return number(static_cast<int>(r), begin + i); });
            }
          }
          return std::string();
        },
        kSmallSlots));
  }
}

TEST_P(RemoteDevice, Messages) {
  expect_no_errors(run([](Communicator& comm, DeviceBuffers& memory) {
    const int n = comm.size();
    const int next = (comm.rank() + 1) % n;
    const int previous = (comm.rank() + n - 1) % n;
    for (const std::size_t count : {5u, 400'000u, 2'000'000u, 7u}) {
      std::byte* from = filled(memory, comm.rank(), count);
      std::byte* to = memory.allocate(sizeof(Value) * count);
      for (int turn = 0; turn < 2; ++turn) {
        comm.group_start();
        comm.send(from, count, DataType::u32, next, 0, memory.stream());
        comm.recv(to, count, DataType::u32, previous, 0, nullptr, memory.stream());
        comm.group_end();
        // What has come goes on at once, by the same stream.
        comm.group_start();
        comm.send(to, count, DataType::u32, next, 0, memory.stream());
        comm.recv(to, count, DataType::u32, previous, 0, nullptr, memory.stream());
        comm.group_end();
        memory.must_hold<Value>(to, count, [&](std::size_t i) { return number((comm.rank() + 2 * n - 2) % n, i); });
      }
    }
    return std::string();
  }));
}

/// Returns the error that every rank gets when `misbehave` is done by rank 1 in the third call.
std::vector<Outcome> with_a_bad_rank(
    const std::function<std::vector<Outcome>(const std::function<std::string(Communicator&, DeviceBuffers&)>&)>& run,
    const std::function<void(Communicator&, std::byte*, CUstream)>& misbehave) {
  return run([&](Communicator& comm, DeviceBuffers& memory) {
    std::string told;
    std::byte* data = filled(memory, comm.rank(), 300'000);
    try {
      for (int turn = 0; turn < 3; ++turn) {
        if (turn == 2 && comm.rank() == 1) {
          memory.synchronize();
          misbehave(comm, data, memory.stream());
        } else {
          add_up(comm, data, 300'000, memory.stream());
        }
      }
      while (comm.status(&told) == Code::ok) std::this_thread::yield();
      add_up(comm, data, 300'000, memory.stream());
    } catch (const Error& error) {
      told = error.what();
    }
    memory.synchronize();  // the stream goes on
    return told;
  });
}

TEST_P(RemoteDevice, AnotherCallIsNamedAsTheCallerMadeIt) {
  const auto in_turns = [](const auto& body) { return run(body, kSmallSlots); };
  auto outcomes = with_a_bad_rank(in_turns, [](Communicator& comm, std::byte* data, CUstream stream) {
    add_up(comm, data, 299'999, stream);  // differs in its last turn alone
  });
  expect_all_say(outcomes, "called all_reduce(299999 x u32, sum, device memory)");
  expect_all_say(outcomes, "called all_reduce(300000 x u32, sum, device memory)");
  outcomes = with_a_bad_rank(in_turns, [](Communicator& comm, std::byte*, CUstream) {
    std::vector<Value> host(300'000);
    comm.all_reduce(host.data(), host.data(), host.size(), DataType::u32);
  });
  expect_all_say(outcomes, "called all_reduce(300000 x u32, sum)");
  expect_all_say(outcomes, "called all_reduce(300000 x u32, sum, device memory)");
}

TEST_P(RemoteDevice, ARankThatDies) {
  const auto outcomes = with_a_bad_rank(
      [](const auto& body) {
        return run(body, {{"TUTTI_TIMEOUT", "20s"}});
      },
      [](Communicator&, std::byte*, CUstream) { ::raise(SIGKILL); });
  expect_all_say(outcomes, "died", 1);
}

TEST_P(RemoteDevice, ARankThatStaysAway) {
  const auto outcomes = with_a_bad_rank(
      [](const auto& body) {
        return run(body, {{"TUTTI_TIMEOUT", "2s"}});
      },
      [](Communicator& comm, std::byte*, CUstream) {
        while (comm.status() == Code::ok) std::this_thread::yield();
      });
  expect_all_say(outcomes, "rank 1");
  expect_all_say(outcomes, "waited");
}

TEST_P(RemoteDevice, ARankThatAborts) {
  const auto outcomes = with_a_bad_rank([](const auto& body) { return run(body); },
                                        [](Communicator& comm, std::byte*, CUstream) { comm.abort("enough of it"); });
  expect_all_say(outcomes, "aborted the communicator: enough of it");
}

TEST_P(RemoteDevice, WhoWaitsForAStreamThatDoesNotComeIsTold) {
  const auto outcomes = run(
      [](Communicator& comm, DeviceBuffers& memory) {
        std::byte* data = filled(memory, comm.rank(), 10);
        memory.hold();
        std::string told = "nothing";
        try {
          add_up(comm, data, 10, memory.stream());
          comm.barrier();
        } catch (const Error& error) {
          told = error.what();
        }
        memory.let_go();
        memory.synchronize();
        return told;
      },
      {{"TUTTI_TIMEOUT", "1s"}});
  expect_all_say(outcomes, "for its stream to come to a call on device memory");
}

TEST_P(RemoteDevice, WhatCannotBeIsRefused) {
  NEEDS_GPUS(2);
  expect_no_errors(run([](Communicator& comm, DeviceBuffers& memory) {
    std::byte* data = filled(memory, comm.rank(), 16);
    DeviceBuffers elsewhere(1);
    std::byte* there = elsewhere.allocate(64);
    float host[16] = {};
    const auto refused = [&](Code code, const char* words, const std::function<void()>& call) {
      try {
        call();
      } catch (const Error& error) {
        MUST(error.code() == code);
        if (std::string(error.what()).find(words) == std::string::npos) throw;
        return;
      }
      MUST(false);
    };
    add_up(comm, data, 16, memory.stream());
    refused(Code::invalid_argument, "expected both in the same memory",
            [&] { comm.all_reduce(data, host, 16, DataType::f32, ReduceOp::sum, {.stream = memory.stream()}); });
    refused(Code::invalid_argument, "its communicator is on GPU 0", [&] { add_up(comm, there, 16, memory.stream()); });
    refused(Code::unsupported, "cannot be captured into a graph", [&] {
      DeviceGraph graph(memory, [&] {
        try {
          add_up(comm, data, 16, memory.stream());
        } catch (...) {
          CUgraph unused = nullptr;
          memory.driver().StreamEndCapture(memory.stream(), &unused);
          throw;
        }
      });
    });
    add_up(comm, data, 16, memory.stream());  // and it goes on working
    memory.must_hold<Value>(data, 16,
                            [&](std::size_t i) { return sum_of(comm.size(), i) * static_cast<Value>(comm.size()); });
    return std::string();
  }));
}

TEST_P(RemoteDevice, AGpuWhoseStreamsWaitForNoValuesIsRefused) {
  NEEDS_FAKE_DRIVER("its streams wait for no values");
  const auto outcomes = run(
      [](Communicator& comm, DeviceBuffers& memory) {
        try {
          add_up(comm, filled(memory, comm.rank(), 16), 16, memory.stream());
        } catch (const Error& error) {
          return std::string(error.what());
        }
        return std::string();
      },
      {}, {.wait_values = false});
  expect_all_say(outcomes, "has no streams that wait for values");
}

INSTANTIATE_TEST_SUITE_P(Placements, RemoteDevice, ::testing::ValuesIn(kPlacements));

}  // namespace
}  // namespace tutti::testing::remote_processes_test
