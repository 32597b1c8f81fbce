// Device memory between hosts, each rank with a fake driver of its own: it goes through pinned memory.
#include <cstdlib>
#include <thread>

#include "tests/device/device_buffers.h"
#include "tests/device/like_the_host.h"
#include "tests/hosts/job.h"

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
      comm.barrier();
      if (place.rank() >= GetParam()) ::raise(SIGKILL);
      try {
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

INSTANTIATE_TEST_SUITE_P(RanksOfEachHost, Device, ::testing::Values(1, 2));

}  // namespace
}  // namespace tutti::testing
