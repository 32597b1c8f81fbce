// GPUDirect between hosts, on processes that count as hosts: the slots lie in a fake driver's device memory, which the
// host cannot touch once it has been handed out (it faults), and a NIC of the tests carries what is in them. So a
// result that is right has come there without the host. With TUTTI_TEST_CARD=verbs the verbs wire carries it (./dev
// rdma-vm).
#include <gtest/gtest.h>

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "collectives/job/networks.h"
#include "tests/collectives/must.h"
#include "tests/collectives/processes.h"
#include "tests/device/device_buffers.h"
#include "tests/device/host_reference.h"
#include "tests/support/fake_cuda/walkers.h"
#include "tests/support/nic_wire.h"
#include "tests/support/verbs_card.h"

namespace tutti::testing::direct_processes_test {
namespace {

using Hosts = std::vector<std::string>;
using Body = std::function<std::string(Communicator&, DeviceBuffers&, FakeDriver&)>;

// Slots of 512 KiB, so that calls of some size take several turns.
const Environment kSmallSlots = {{"TUTTI_MEMORY_LIMIT", "8M"}, {"TUTTI_SCRATCH", "256K"}};
constexpr const char* kByCard = "by the NIC";

bool by_verbs() { return std::getenv("TUTTI_TEST_CARD") != nullptr; }

/// `misfit`: the rank whose GPU does not hand out its memory.
std::vector<Outcome> run_on(const Hosts& hosts, const Body& body, const Environment& environment = {},
                            FakeMachine machine = {.dmabuf = true}, int misfit = -1) {
  machine.devices = static_cast<int>(hosts.size());
  return run_processes(
      machine.devices,
      [&](Communicator& comm) {
        const int own_gpu = comm.rank();
        FakeMachine own = machine;
        own.dmabuf = machine.dmabuf && comm.rank() != misfit;
#ifdef TUTTI_HAS_VERBS
        if (by_verbs()) register_mapped_pages();
#endif
        FakeDriver cuda(own);
        add_walkers(cuda);
        std::string said;
        {
          DeviceBuffers memory(own_gpu);
          said = body(comm, memory, cuda);
        }
        const bool well = comm.status() == Code::ok;
        comm = {};
        // Windows of kernels may stay a little longer, for peers that are slower.
        const bool windows = std::set<std::string>(hosts.begin(), hosts.end()).size() < hosts.size();
        MUST(!well || windows || cuda.allocated(own_gpu) == 0);
        return said;
      },
      environment, {}, hosts);
}

class Direct : public ::testing::TestWithParam<Hosts> {
 protected:
  void SetUp() override {
    if (by_verbs()) return;
    if (!LocalWire::allowed()) GTEST_SKIP() << "tutti-test: not run: this machine forbids process_vm_writev";
    set_wire_for_tests(NicWire::open);
  }
  void TearDown() override { set_wire_for_tests(nullptr); }
};

constexpr Collective kMoving[] = {Collective::all_gather, Collective::all_to_all, Collective::gather,
                                  Collective::scatter, Collective::broadcast};

bool by_card(const std::string& reason) { return reason.find(kByCard) != std::string::npos; }

TEST_P(Direct, HasTheBitsOfTheHostWhichTouchesNoByte) {
  expect_no_errors(run_on(
      GetParam(),
      [](Communicator& comm, DeviceBuffers& memory, FakeDriver&) {
        for (const Collective collective : kMoving) {
          for (const bool in_place : {false, true}) {
            if (in_place && collective != Collective::all_gather && collective != Collective::broadcast) continue;
            // 64 KiB and a little, and so much that it takes several turns; shares of lanes that do not end with a
            // line.
            for (const std::size_t count : {65'537u, 1'000'001u}) {
              Step s{.collective = collective, .count = count, .type = DataType::u8, .in_place = in_place};
              s.root = has_root(collective) ? comm.size() - 1 : 0;
              const std::string how = check_step(comm, memory, s, memory.stream());
              MUST(by_card(how) && (count < 100'000 || how.find("in 1 fragment") == std::string::npos));
            }
          }
        }
        return std::string();
      },
      kSmallSlots));
}

// Calls that add, small ones, those of which an algorithm is asked for and messages, which not all ranks send, go
// through pinned memory, on two streams, between calls that do not.
TEST_P(Direct, AmongCallsThatAreNot) {
  const unsigned seed = 5;
  SCOPED_TRACE("seed " + std::to_string(seed));
  expect_no_errors(run_on(
      GetParam(),
      [](Communicator& comm, DeviceBuffers& memory, FakeDriver&) {
        std::minstd_rand same(seed);
        const auto draw = [&](std::size_t below) { return same() % below; };
        DeviceBuffers others(comm.rank());
        std::byte* word = memory.allocate(8);
        int direct = 0;
        for (int i = 0; i < 40; ++i) {
          const CUstream stream = draw(2) == 0 ? memory.stream() : others.stream();
          if (draw(4) == 0) {
            if (comm.rank() == 0) comm.send(word, 8, DataType::u8, 1, 0, stream);
            if (comm.rank() == 1) comm.recv(word, 8, DataType::u8, 0, 0, nullptr, stream);
          }
          Step s{.collective = kAll[draw(std::size(kAll))], .type = DataType::i32};
          s.count = draw(3) == 0 ? draw(100) : draw(300'000);
          s.root = has_root(s.collective) ? static_cast<int>(draw(static_cast<std::size_t>(comm.size()))) : 0;
          const bool carried = by_card(check_step(comm, memory, s, stream));
          MUST(!carried || !reduces(s.collective));
          direct += carried ? 1 : 0;
        }
        MUST(direct > 5);
        return std::string();
      },
      kSmallSlots));
}

// The caller goes on while its stream has not come to the calls: each is copied out of its slots before a later one's
// data comes there.
TEST_P(Direct, InTheOrderOfTheStream) {
  expect_no_errors(run_on(
      GetParam(),
      [](Communicator& comm, DeviceBuffers& memory, FakeDriver&) {
        constexpr std::size_t kCount = 100'000;
        const auto n = static_cast<std::size_t>(comm.size());
        std::vector<std::byte*> all;
        std::vector<std::byte*> mine;
        for (int i = 0; i < 12; ++i) {
          mine.push_back(memory.allocate(kCount));
          memory.write(mine.back(), std::vector<std::byte>(kCount, static_cast<std::byte>(16 * comm.rank() + i)));
          all.push_back(memory.allocate(kCount * n));
        }
        if (comm.rank() == 0) memory.hold();
        for (std::size_t i = 0; i < all.size(); ++i) {
          comm.all_gather(mine[i], all[i], kCount, DataType::u8, {.stream = memory.stream()});
        }
        MUST(comm.status() == Code::ok);
        memory.let_go();
        for (std::size_t i = 0; i < all.size(); ++i) {
          memory.must_hold<std::uint8_t>(
              all[i], kCount * n, [&](std::size_t at) { return static_cast<std::uint8_t>(16 * (at / kCount) + i); });
        }
        return std::string();
      },
      kSmallSlots));
}

std::string gather_once(Communicator& comm, DeviceBuffers& memory) {
  const Step s{.collective = Collective::all_gather, .count = 300'000, .type = DataType::i32};
  return check_step(comm, memory, s, memory.stream());
}

TEST_P(Direct, WritesThatAGpuDoesNotOrderAreWaitedFor) {
  for (const bool ordered : {true, false}) {
    const auto outcomes =
        run_on(GetParam(),
               [](Communicator& comm, DeviceBuffers& memory, FakeDriver& cuda) {
                 MUST(by_card(gather_once(comm, memory)));
                 return cuda.calls("cuFlushGPUDirectRDMAWrites") > 0 ? "waited" : "relied on the order";
               },
               {}, {.dmabuf = true, .ordered = ordered});
    expect_all_say(outcomes, ordered ? "relied on the order" : "waited");
  }
}

TEST_P(Direct, WhereARankCannotAllGoThroughPinnedMemory) {
  const auto body = [](Communicator& comm, DeviceBuffers& memory, FakeDriver&) {
    const std::string how = gather_once(comm, memory);
    MUST(!by_card(how) && how == gather_once(comm, memory));
    return how;
  };
  auto outcomes = run_on(GetParam(), body, {}, {.dmabuf = true}, 1);
  expect_all_say(outcomes, "no GPUDirect: rank 1 (", 1);
  EXPECT_NE(outcomes[1].said.find("no GPUDirect: GPU 1 (Fake GPU)'s driver does not hand its memory"),
            std::string::npos)
      << outcomes[1].said;
  set_wire_for_tests([](const transport::WireJob& job) -> Result<std::unique_ptr<transport::Wire>> {
    return std::unique_ptr<transport::Wire>(std::make_unique<LocalWire>(job));
  });
  outcomes = run_on(GetParam(), body);
  expect_all_say(outcomes, "no GPUDirect: local has no way to a device's memory");
}

/// Returns the error that every rank gets when rank 1 does something else than its third call.
std::vector<Outcome> with_a_bad_rank(const Hosts& hosts,
                                     const std::function<void(Communicator&, std::byte*, CUstream)>& misbehave,
                                     const Environment& environment = {}) {
  return run_on(
      hosts,
      [&](Communicator& comm, DeviceBuffers& memory, FakeDriver&) {
        constexpr std::size_t kCount = 900'000;
        std::byte* mine = memory.allocate(kCount);
        std::byte* all = memory.allocate((kCount + 1) * static_cast<std::size_t>(comm.size()));
        const auto gather = [&] { comm.all_gather(mine, all, kCount, DataType::u8, {.stream = memory.stream()}); };
        std::string told;
        try {
          for (int turn = 0; turn < 3; ++turn) {
            if (turn == 2 && comm.rank() == 1) {
              memory.synchronize();
              misbehave(comm, all, memory.stream());
            } else {
              gather();
            }
          }
          while (comm.status(&told) == Code::ok) std::this_thread::yield();
          gather();
        } catch (const Error& error) {
          told = error.what();
        }
        memory.synchronize();  // the stream goes on
        return told;
      },
      environment);
}

TEST_P(Direct, WhatGoesWrongIsNamed) {
  auto outcomes = with_a_bad_rank(GetParam(), [](Communicator& comm, std::byte* all, CUstream stream) {
    comm.all_gather(all + comm.rank() * 899'999, all, 899'999, DataType::u8, {.stream = stream});
  });
  expect_all_say(outcomes, "called all_gather(899999 x u8, device memory)");
  expect_all_say(outcomes, "called all_gather(900000 x u8, device memory)");
  outcomes = with_a_bad_rank(GetParam(), [](Communicator& comm, std::byte* all, CUstream stream) {
    comm.all_reduce(all, all, 100, DataType::u8, ReduceOp::sum, {.stream = stream});  // through pinned memory
  });
  expect_all_say(outcomes, "called all_reduce(100 x u8, sum, device memory)");
  outcomes = with_a_bad_rank(GetParam(), [](Communicator&, std::byte*, CUstream) { ::raise(SIGKILL); },
                             {{"TUTTI_TIMEOUT", "20s"}});
  expect_all_say(outcomes, "died", 1);
  outcomes = with_a_bad_rank(GetParam(),
                             [](Communicator& comm, std::byte*, CUstream) {
                               while (comm.status() == Code::ok) std::this_thread::yield();
                             },
                             {{"TUTTI_TIMEOUT", "2s"}});
  expect_all_say(outcomes, "waited");
  outcomes = with_a_bad_rank(GetParam(), [](Communicator& comm, std::byte*, CUstream) { comm.abort("enough of it"); });
  expect_all_say(outcomes, "aborted the communicator: enough of it");
}

INSTANTIATE_TEST_SUITE_P(Placements, Direct, ::testing::Values(Hosts{"a", "b"}, Hosts{"a", "b", "c"}));

// Kernels inside each host, and NICs between them.
class DirectGrid : public Direct {};

TEST_P(DirectGrid, BetweenKernels) {
  expect_no_errors(run_on(GetParam(), [](Communicator& comm, DeviceBuffers& memory, FakeDriver&) {
    for (const Collective collective : {Collective::all_gather, Collective::broadcast}) {
      for (const bool in_place : {false, true}) {
        const bool gathers = collective == Collective::all_gather;
        // Several turns, one of them among all ranks for the elements that a host's ranks cannot share.
        Step s{.collective = collective, .count = gathers ? 700'001u : 2'500'001u, .type = DataType::i32};
        s.in_place = in_place;
        s.root = gathers ? 0 : 1;
        const std::string how = check_step(comm, memory, s, memory.stream());
        MUST(by_card(how) && how.find("kernels inside each host") != std::string::npos);
      }
    }
    const Step sum{.collective = Collective::all_reduce, .count = 500'000, .type = DataType::i32};
    MUST(!by_card(check_step(comm, memory, sum, memory.stream())));
    return std::string();
  }));
}

INSTANTIATE_TEST_SUITE_P(Placements, DirectGrid,
                         ::testing::Values(Hosts{"a", "a", "b", "b"}, Hosts{"a", "b", "a", "b"}));

}  // namespace
}  // namespace tutti::testing::direct_processes_test
