// Device memory between hosts, each rank with a fake driver of its own: it goes through pinned memory. Where ranks have
// GPUs of their own, each host sends its share alone: counted by the kernel at each host's link.
#include <cstddef>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/device/device_buffers.h"
#include "tests/device/host_reference.h"
#include "tests/hosts/traffic.h"
#include "tests/support/fake_cuda/walkers.h"

namespace tutti::testing::device_test {
namespace {

class Device : public ::testing::TestWithParam<int> {};  // ranks on each host

TEST_P(Device, HasTheBitsOfTheHost) {
  Hosts hosts(2);
  NEEDS_HOSTS(hosts);
  Job job(hosts, GetParam(), [&](const Place&) {
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

void count_at_links(int count, int each, const Traffic& expected) {
  Hosts hosts(count);
  NEEDS_HOSTS(hosts);
  SCOPED_TRACE(std::string(name_of(expected.collective)) + ", " + std::to_string(count) + " hosts x " +
               std::to_string(each));
  constexpr std::size_t kBytes = std::size_t{12} << 20;
  constexpr int kCalls = 3;
  Job job(hosts, each, [&](const Place& place) {
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
      count_bytes(place, comm, expected, kCalls, once);
    }
    comm = {};
  });
  ASSERT_TRUE(job.finish(120s));
  expect_bytes(job, count, each, expected, kCalls, kBytes);
}

TEST(DeviceTraffic, OnlyTheHostsShare) {
  count_at_links(2, 2, {Collective::all_reduce, 1.0, 1.0});
  count_at_links(2, 3, {Collective::all_reduce, 1.0, 1.0});
  count_at_links(3, 2, {Collective::all_reduce, 4.0 / 3, 4.0 / 3});
  count_at_links(3, 2, {Collective::reduce_scatter, 2.0 / 3, 2.0 / 3});
  count_at_links(3, 2, {Collective::all_gather, 2.0 / 3, 2.0 / 3});
  count_at_links(2, 2, {Collective::broadcast, 1.0, 0.0});
}

INSTANTIATE_TEST_SUITE_P(RanksOfEachHost, Device, ::testing::Values(1, 2));

}  // namespace
}  // namespace tutti::testing::device_test
