// Device memory between hosts, each rank with a fake driver of its own: it goes through pinned memory. Where ranks have
// GPUs of their own, each host sends its share alone: counted by the kernel at each host's link.
#include <cstdlib>
#include <fstream>
#include <thread>

#include "tests/device/device_buffers.h"
#include "tests/device/like_the_host.h"
#include "tests/hosts/job.h"
#include "tests/support/fake_walkers.h"

namespace tutti::testing {
namespace {

// UCX's hooks would run at the end of each of a fake driver's threads, where ThreadSanitizer has left already.
void without_hooks() { ::setenv("UCX_MEM_EVENTS", "n", 1); }

class Device : public ::testing::TestWithParam<int> {};  // ranks on each host

TEST_P(Device, HasTheBitsOfTheHost) {
  Hosts hosts(2);
  NEEDS_HOSTS(hosts);
  Job job(hosts, GetParam(), [&](const Place&) {
    without_hooks();
    FakeDriver cuda;
    Communicator comm = Communicator::from_environment(with_timeout(60s));
    {
      DeviceBuffers memory(0);
      compare_with_host(comm, memory, 9);
    }
    comm = {};
  });
  EXPECT_TRUE(job.finish(120s));
}

TEST_P(Device, AHostThatDiesIsToldAndStreamsGoOn) {
  Hosts hosts(2);
  NEEDS_HOSTS(hosts);
  Job job(hosts, GetParam(), [&](const Place& place) {
    without_hooks();
    FakeDriver cuda;
    Communicator comm = Communicator::from_environment(with_timeout(30s));
    std::string told;
    {
      DeviceBuffers memory(0);
      std::byte* data = memory.allocate(400'000);
      memory.write(data, std::vector<std::byte>(400'000));
      const auto add_up = [&] {
        comm.all_reduce(data, data, 100'000, DataType::u32, ReduceOp::sum, {.stream = memory.stream()});
      };
      for (int turn = 0; turn < 3; ++turn) add_up();
      memory.synchronize();
      try {
        comm.barrier();  // whose last message may come from a rank that has died by then
        if (place.rank() >= GetParam()) ::raise(SIGKILL);
        for (int turn = 0; turn < 3; ++turn) add_up();
        while (comm.status(&told) == Code::ok) std::this_thread::yield();
      } catch (const Error& error) {
        told = error.what();
      }
      memory.synchronize();
    }
    comm = {};
    if (told.find("died") == std::string::npos) throw std::runtime_error("it was told: " + told);
  });
  EXPECT_TRUE(job.finish(60s, job.ranks_of(1)));
}

double sent() {
  std::ifstream file("/sys/class/net/eth0/statistics/tx_bytes");
  double bytes = 0;
  file >> bytes;
  return bytes;
}

/// Bytes that each host may send in a call, of a message of one: the textbook's. Where `only_first`, the other hosts
/// have none to send.
struct Expected {
  Collective collective;
  double bytes;
  bool only_first = false;
};

void count_bytes(int count, int each, const Expected& expected) {
  Hosts hosts(count);
  NEEDS_HOSTS(hosts);
  SCOPED_TRACE(std::string(name_of(expected.collective)) + ", " + std::to_string(count) + " hosts x " +
               std::to_string(each));
  constexpr std::size_t kBytes = std::size_t{12} << 20;
  constexpr int kCalls = 3;
  Job job(hosts, each, [&](const Place& place) {
    without_hooks();
    FakeDriver cuda({.devices = each});
    add_walkers(cuda);
    Communicator comm = Communicator::from_environment(with_timeout(60s));
    {
      DeviceBuffers memory(place.rank() % each);
      const bool of_blocks =
          expected.collective == Collective::all_gather || expected.collective == Collective::reduce_scatter;
      const std::size_t elements = kBytes / 4 / (of_blocks ? static_cast<std::size_t>(comm.size()) : 1);
      std::byte* send = memory.allocate(kBytes);
      std::byte* recv = memory.allocate(kBytes);
      memory.write(send, std::vector<std::byte>(kBytes));
      const auto once = [&] {
        call(comm, expected.collective, send, recv, elements, DataType::f32, ReduceOp::sum, 0,
             {.stream = memory.stream()});
        memory.synchronize();
      };
      once();
      if (comm.explain_last_call().reason.find("kernels inside each host") == std::string::npos) {
        place.give_up(comm.explain_last_call().reason);
      }
      // Whoever has left a barrier has no bytes of the calls before it to send; those of the barrier are few.
      comm.barrier();
      const double before = sent();
      comm.barrier();
      for (int i = 0; i < kCalls; ++i) once();
      comm.barrier();
      place.note(std::to_string(sent() - before));
      comm.barrier();
    }
    comm = {};
  });
  ASSERT_TRUE(job.finish(120s));
  // Frames and their headers (one in 22 bytes of a full one), acknowledgements of what comes, and what a call says
  // besides its data.
  constexpr double kOverhead = 1.10;
  for (int host = 0; host < count; ++host) {
    const double messages = std::stod(job.note(host * each)) / kCalls / kBytes;
    const double most = expected.only_first && host != 0 ? 0.0 : expected.bytes;
    EXPECT_LE(messages, most * kOverhead + 0.01) << Hosts::name(host);
    if (most == 0) continue;
    EXPECT_GE(messages, most * 0.98) << Hosts::name(host) << ": what was counted cannot be all";
  }
}

TEST(DeviceTraffic, OnlyTheHostsShare) {
  count_bytes(2, 2, {Collective::all_reduce, 2.0 / 2});
  count_bytes(2, 3, {Collective::all_reduce, 2.0 / 2});
  count_bytes(3, 2, {Collective::all_reduce, 2.0 * 2 / 3});
  count_bytes(3, 2, {Collective::reduce_scatter, 2.0 / 3});
  count_bytes(3, 2, {Collective::all_gather, 2.0 / 3});
  count_bytes(2, 2, {Collective::broadcast, 1.0, true});
}

INSTANTIATE_TEST_SUITE_P(RanksOfEachHost, Device, ::testing::Values(1, 2));

}  // namespace
}  // namespace tutti::testing
