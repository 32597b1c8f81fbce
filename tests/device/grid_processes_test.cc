// Device memory in jobs of several hosts whose ranks have GPUs of their own (TUTTI_HOST_ID; each rank with a fake
// driver of its own): kernels inside each host, shares between them. The results are those of the same calls on host
// memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tests/collectives/conformance.h"
#include "tests/collectives/must.h"
#include "tests/collectives/processes.h"
#include "tests/device/device_buffers.h"
#include "tests/device/host_reference.h"
#include "tests/support/fake_cuda/walkers.h"

namespace tutti::testing::grid_processes_test {
namespace {

using Hosts = std::vector<std::string>;

// Slots of 512 KiB, so that calls of some size take several turns.
const Environment kSmallSlots = {{"TUTTI_MEMORY_LIMIT", "8M"}, {"TUTTI_SCRATCH", "256K"}};

/// Ranks on `hosts`, each on a GPU of its own unless `one_gpu`.
std::vector<Outcome> run_on(const Hosts& hosts, const std::function<std::string(Communicator&, DeviceBuffers&)>& body,
                            Environment environment = {}, bool one_gpu = false) {
  // UCX's hooks would run at the end of each of a fake driver's threads, where ThreadSanitizer has left already.
  environment["UCX_MEM_EVENTS"] = "n";
  const int ranks = static_cast<int>(hosts.size());
  return run_processes(
      ranks,
      [&](Communicator& comm) {
        FakeDriver cuda({.devices = ranks});
        add_walkers(cuda);
        std::string said;
        {
          DeviceBuffers memory(one_gpu ? 0 : comm.rank());
          said = body(comm, memory);
        }
        comm = {};
        return said;
      },
      environment, {}, hosts);
}

bool by_kernels(const std::string& reason) { return reason.find("kernels inside each host") != std::string::npos; }

constexpr Collective kServed[] = {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
                                  Collective::broadcast, Collective::reduce};

class Grid : public ::testing::TestWithParam<Hosts> {
 protected:
  void SetUp() override { NEEDS_NETWORK(); }
};

TEST_P(Grid, EachCollectiveOnceEveryWay) {
  expect_no_errors(run_on(
      GetParam(),
      [](Communicator& comm, DeviceBuffers& memory) {
        for (const Collective collective : kServed) {
          for (const bool in_place : {false, true}) {
            Step s{.collective = collective, .type = DataType::i32, .root = comm.size() - 1, .in_place = in_place};
            s.count = (collective == Collective::reduce_scatter || collective == Collective::all_gather)
                          ? 150'001
                          : 500'001;  // with a rest that a host's ranks cannot share
            MUST(by_kernels(check_step(comm, memory, s, memory.stream())));
          }
        }
        return std::string();
      },
      kSmallSlots));
}

// Mixed sizes, types and operations on two streams, calls that take turns without kernels among those that take them
// with kernels.
TEST_P(Grid, RandomPrograms) {
  for (const unsigned seed : {1u, 2u}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    expect_no_errors(run_on(
        GetParam(),
        [seed](Communicator& comm, DeviceBuffers& memory) {
          std::minstd_rand same(seed);
          const auto draw = [&](std::size_t below) { return same() % below; };
          DeviceBuffers others(comm.rank());
          int kernels = 0;
          for (int i = 0; i < 24; ++i) {
            Step s;
            s.collective = draw(6) == 0 ? Collective::all_to_all : kServed[draw(std::size(kServed))];
            const bool of_blocks = blocks(s.collective, 2, true) + blocks(s.collective, 2, false) > 2;
            s.count = draw(4) == 0 ? draw(1000) : draw(of_blocks ? 200'000 : 900'000);
            const DataType types[] = {DataType::u8, DataType::i32, DataType::bf16, DataType::f32, DataType::f64};
            s.type = types[draw(std::size(types))];
            const ReduceOp ops[] = {ReduceOp::sum, ReduceOp::min, ReduceOp::max, ReduceOp::avg, ReduceOp::premul_sum};
            const ReduceOp op = ops[draw(std::size(ops))];
            if (reduces(s.collective) && applies(op, s.type)) s.op = op;
            s.factor = s.op == ReduceOp::premul_sum ? static_cast<double>(1 + comm.rank() % 2) : 1.0;
            s.root = has_root(s.collective) ? static_cast<int>(draw(static_cast<std::size_t>(comm.size()))) : 0;
            s.in_place = draw(3) == 0 && s.collective != Collective::all_to_all;
            const CUstream stream = draw(2) == 0 ? memory.stream() : others.stream();
            kernels += by_kernels(check_step(comm, memory, s, stream)) ? 1 : 0;
          }
          MUST(kernels > 5);
          return std::string();
        },
        kSmallSlots));
  }
}

void add_up(Communicator& comm, std::byte* data, std::size_t count, CUstream stream) {
  comm.all_reduce(data, data, count, DataType::u32, ReduceOp::sum, {.stream = stream});
}

constexpr std::size_t kLarge = 300'000;  // x u32: 1.2 MB, three slots

std::byte* zeros(DeviceBuffers& memory, std::size_t count) {
  std::byte* made = memory.allocate(4 * count);
  memory.write(made, std::vector<std::byte>(4 * count));
  return made;
}

// Calls follow each other on two streams, without the caller's waiting for any of them.
TEST_P(Grid, InTheOrderOfTheStreams) {
  expect_no_errors(run_on(
      GetParam(),
      [](Communicator& comm, DeviceBuffers& memory) {
        DeviceBuffers others(comm.rank());
        std::vector<std::uint32_t> ones(kLarge, 1);
        std::byte* data = memory.allocate(4 * kLarge);
        memory.write(data, std::as_bytes(std::span(ones)));
        std::uint32_t expected = 1;
        for (int i = 0; i < 6; ++i) {
          add_up(comm, data, i == 3 ? 100 : kLarge, i % 2 == 0 ? memory.stream() : others.stream());
          if (i != 3) expected *= static_cast<std::uint32_t>(comm.size());
        }
        others.synchronize();
        memory.must_hold<std::uint32_t>(data, kLarge, [&](std::size_t i) {
          return i < 100 ? expected * static_cast<std::uint32_t>(comm.size()) : expected;
        });
        return std::string();
      },
      kSmallSlots));
}

TEST_P(Grid, EveryOperation) {
  expect_no_errors(run_on(
      GetParam(),
      [](Communicator& comm, DeviceBuffers& memory) {
        for (int o = 0; o < kReduceOps; ++o) {
          const auto op = static_cast<ReduceOp>(o);
          const DataType type = applies(op, DataType::f32) ? DataType::f32 : DataType::u32;
          const double factor = op == ReduceOp::premul_sum ? 1.0 + comm.rank() : 1.0;
          for (const Collective collective : {Collective::all_reduce, Collective::reduce_scatter, Collective::reduce}) {
            const std::size_t count = collective == Collective::reduce_scatter ? 60'000 : 200'003;
            Step s{.collective = collective, .count = count, .type = type, .op = op, .root = 1, .factor = factor};
            MUST(by_kernels(check_step(comm, memory, s, memory.stream())));
          }
        }
        return std::string();
      },
      kSmallSlots));
}

// After open_device() a call returns though its stream has not come to it, the first one too.
TEST_P(Grid, OnceOpenNoCallWaits) {
  expect_no_errors(run_on(
      GetParam(),
      [](Communicator& comm, DeviceBuffers& memory) {
        comm.open_device(comm.rank());
        std::byte* data = zeros(memory, kLarge);
        memory.hold();
        for (const std::size_t count : {std::size_t{10}, kLarge, kLarge}) add_up(comm, data, count, memory.stream());
        memory.let_go();
        memory.must_hold<std::uint32_t>(data, kLarge, [](std::size_t) { return 0; });
        MUST(by_kernels(comm.explain_last_call().reason));
        return std::string();
      },
      kSmallSlots));
}

INSTANTIATE_TEST_SUITE_P(Placements, Grid,
                         ::testing::Values(Hosts{"a", "a", "b", "b"}, Hosts{"a", "b", "a", "b"},
                                           Hosts{"a", "a", "a", "b", "b", "b"}, Hosts{"a", "a", "b", "b", "c", "c"}));

/// The reason that rank 0 gives for a call after it has been checked.
std::string reason_of(const Hosts& hosts, bool one_gpu, const CallOptions& options = {}) {
  const auto outcomes = run_on(
      hosts,
      [&](Communicator& comm, DeviceBuffers& memory) {
        std::byte* data = zeros(memory, kLarge);
        for (int i = 0; i < 2; ++i) {
          CallOptions now = options;
          now.stream = memory.stream();
          comm.all_reduce(data, data, kLarge, DataType::u32, ReduceOp::sum, now);
        }
        memory.must_hold<std::uint32_t>(data, kLarge, [](std::size_t) { return 0; });
        return comm.explain_last_call().reason;
      },
      kSmallSlots, one_gpu);
  expect_no_errors(outcomes);
  return outcomes[0].said;
}

TEST(NoGrid, WhereItCannotBe) {
  NEEDS_NETWORK();
  const auto says = [](const std::string& reason, const char* why) {
    EXPECT_NE(reason.find("through pinned memory"), std::string::npos) << reason;
    EXPECT_NE(reason.find(why), std::string::npos) << reason;
    EXPECT_FALSE(by_kernels(reason)) << reason;
  };
  says(reason_of({"a", "a", "b"}, false), "no kernels inside hosts: hosts have different numbers of ranks");
  says(reason_of({"a", "b"}, false), "no kernels inside hosts: each host has one rank");
  says(reason_of({"a", "b", "b", "a"}, false), "no kernels inside hosts: the hosts' ranks are not in one order");
  says(reason_of({"a", "a", "b", "b"}, true), "no kernels inside hosts: processes of a host share a GPU");
  says(reason_of({"a", "a", "b", "b"}, false, {.deterministic = true}), "fragment(s)");
  says(reason_of({"a", "a", "b", "b"}, false, {.algorithm = "ring"}), "fragment(s)");
}

// One host's ranks share a GPU, the other's do not: all of them go without.
TEST(NoGrid, WhereOneHostCannot) {
  NEEDS_NETWORK();
  const auto outcomes = run_processes(4,
                                      [](Communicator& comm) {
                                        FakeDriver cuda({.devices = 2});
                                        add_walkers(cuda);
                                        std::string reason;
                                        {
                                          DeviceBuffers memory(comm.rank() == 1 ? 1 : 0);
                                          std::byte* data = zeros(memory, kLarge);
                                          add_up(comm, data, kLarge, memory.stream());
                                          memory.synchronize();
                                          reason = comm.explain_last_call().reason;
                                        }
                                        comm = {};
                                        return reason;
                                      },
                                      {{"UCX_MEM_EVENTS", "n"}}, {}, {"a", "a", "b", "b"});
  expect_all_say(outcomes, "no kernels inside hosts: ");
}

/// Returns the error that every rank gets when `misbehave` is done by rank 1 in the third call.
std::vector<Outcome> with_a_bad_rank(const std::function<void(Communicator&, std::byte*, CUstream)>& misbehave,
                                     Environment environment = {}) {
  environment.insert(kSmallSlots.begin(), kSmallSlots.end());
  return run_on(
      {"a", "a", "b", "b"},
      [&](Communicator& comm, DeviceBuffers& memory) {
        std::string told;
        std::byte* data = zeros(memory, kLarge);
        try {
          for (int turn = 0; turn < 3; ++turn) {
            if (turn == 2 && comm.rank() == 1) {
              memory.synchronize();
              misbehave(comm, data, memory.stream());
            } else {
              add_up(comm, data, kLarge, memory.stream());
            }
          }
          while (comm.status(&told) == Code::ok) std::this_thread::yield();
          add_up(comm, data, kLarge, memory.stream());
        } catch (const Error& error) {
          told = error.what();
        }
        memory.synchronize();  // the stream goes on, and kernels have ended
        return told;
      },
      environment);
}

TEST(GridFailures, AnotherCallIsNamed) {
  NEEDS_NETWORK();
  for (const std::size_t count : {kLarge - 1, std::size_t{100}}) {
    const auto outcomes = with_a_bad_rank(
        [count](Communicator& comm, std::byte* data, CUstream stream) { add_up(comm, data, count, stream); });
    expect_all_say(outcomes, "called all_reduce(" + std::to_string(count) + " x u32, sum");
    expect_all_say(outcomes, "called all_reduce(300000 x u32, sum");
  }
  const auto outcomes = with_a_bad_rank([](Communicator& comm, std::byte*, CUstream) {
    std::vector<std::uint32_t> host(kLarge);
    comm.all_reduce(host.data(), host.data(), host.size(), DataType::u32);
  });
  expect_all_say(outcomes, "called all_reduce(300000 x u32, sum, device memory)");
  expect_all_say(outcomes, "called all_reduce(300000 x u32, sum)");
}

TEST(GridFailures, ARankThatDiesWhileKernelsWaitForIt) {
  NEEDS_NETWORK();
  const auto outcomes =
      with_a_bad_rank([](Communicator&, std::byte*, CUstream) { ::raise(SIGKILL); }, {{"TUTTI_TIMEOUT", "20s"}});
  expect_all_say(outcomes, "died", 1);
}

TEST(GridFailures, ARankThatStaysAway) {
  NEEDS_NETWORK();
  const auto outcomes = with_a_bad_rank(
      [](Communicator& comm, std::byte*, CUstream) {
        while (comm.status() == Code::ok) std::this_thread::yield();
      },
      {{"TUTTI_TIMEOUT", "2s"}});
  expect_all_say(outcomes, "rank 1");
  expect_all_say(outcomes, "waited");
}

TEST(GridFailures, ARankThatAborts) {
  NEEDS_NETWORK();
  const auto outcomes = with_a_bad_rank([](Communicator& comm, std::byte*, CUstream) { comm.abort("enough of it"); });
  expect_all_say(outcomes, "aborted the communicator: enough of it");
}

// The other host's streams have not come to the call, so rank 1 dies while its share is on the network.
TEST(GridFailures, ARankThatDiesOnTheNetwork) {
  NEEDS_NETWORK();
  const auto outcomes =
      run_on({"a", "a", "b", "b"},
             [](Communicator& comm, DeviceBuffers& memory) {
               std::byte* data = zeros(memory, kLarge);
               add_up(comm, data, kLarge, memory.stream());
               memory.synchronize();
               if (comm.rank() == 3) memory.hold();
               std::string told;
               try {
                 add_up(comm, data, kLarge + 2, memory.stream());
                 while (comm.rank() == 1) {
                   if (comm.flight_recorder_text().find("300002 x u32, sum, device memory") != std::string::npos) {
                     ::raise(SIGKILL);
                   }
                 }
                 while (comm.status(&told) == Code::ok) std::this_thread::yield();
               } catch (const Error& error) {
                 told = error.what();
               }
               memory.let_go();
               memory.synchronize();
               return told;
             },
             {{"TUTTI_TIMEOUT", "20s"}});
  expect_all_say(outcomes, "died", 1);
}

}  // namespace
}  // namespace tutti::testing::grid_processes_test
