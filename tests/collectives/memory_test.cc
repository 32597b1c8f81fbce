// What a communicator takes is what it says, a limit is kept, and nothing is left when it goes.
#include <dirent.h>
#include <unistd.h>

#include <fstream>

#include "tests/collectives/conformance.h"
#include "tests/collectives/must.h"
#include "tests/collectives/processes.h"
#include "tests/collectives/ranks.h"
#include "transport/shm/arena.h"

namespace tutti::testing {
namespace {

/// Kilobytes after `field` ("VmSize:") in this process's status.
std::size_t status_kb(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != field) continue;
    std::size_t kb = 0;
    status >> kb;
    return kb;
  }
  return 0;
}

int open_descriptors() {
  int count = 0;
  DIR* directory = ::opendir("/proc/self/fd");
  while (::readdir(directory) != nullptr) ++count;
  ::closedir(directory);
  return count;
}

std::size_t arena_bytes() { return transport::Arena::process().value()->allocated(); }

void use(Communicator& comm) {
  for (const std::size_t count : {std::size_t{100}, std::size_t{50'000}}) {
    for (const Collective collective : {Collective::all_reduce, Collective::all_to_all, Collective::gather}) {
      Case c;
      c.collective = collective;
      c.count = count;
      check_case(comm, c);
    }
  }
}

TEST(Memory, ASingleRankTakesNone) {
  std::vector<Communicator> all = Communicator::in_process(1);
  use(all[0]);
  EXPECT_EQ(all[0].memory().total(), 0u);
  EXPECT_EQ(all[0].split(0, 0).memory().total(), 0u);
}

TEST(Memory, ThreadsTakeWhatIsReported) {
  const std::size_t before = status_kb("VmSize:");
  const std::vector<Communicator> all = Communicator::in_process(4);
  const std::size_t reported = 4 * all[0].memory().scratch;
  const std::size_t taken = (status_kb("VmSize:") - before) * 1024;
  EXPECT_GT(reported, std::size_t{4} << 20);
  EXPECT_GE(taken, reported);
  // The rest are objects on the heap, which grows by at most 64 MiB at a time (an arena of malloc), less than 1 MiB
  // here: main() has only one thread.
  EXPECT_LE(taken, reported + (std::size_t{1} << 20));
}

TEST(Memory, ProcessesTakeWhatIsReported) {
  for (const char* cross_memory : {"auto", "off"}) {
    const auto body = [](Communicator& world) -> std::string {
      const std::size_t before = arena_bytes();
      Communicator comm = world.split(0, 0);
      const std::size_t taken = arena_bytes() - before;
      const std::size_t reported = comm.memory().scratch;
      MUST(taken >= reported && taken < reported + 4096);
      use(comm);
      MUST(arena_bytes() - before == taken);
      // Cross-memory access reads into a buffer on the heap; that is reported too.
      MUST(comm.memory().scratch == reported || comm.memory().scratch - reported <= (std::size_t{513} << 10));
      return "";
    };
    expect_no_errors(run_processes(3, body, {{"TUTTI_CROSS_MEMORY", cross_memory}}));
  }
}

TEST(Memory, ALimitIsKept) {
  const auto body = [](Communicator& world) -> std::string {
    const std::size_t limit = 1'500'000;
    MUST(world.memory().scratch <= limit);
    use(world);
    MUST(world.memory().scratch <= limit);
    Communicator child = world.split(0, 0);
    use(child);
    MUST(child.memory().scratch <= limit);
    return "";
  };
  expect_no_errors(run_processes(3, body, {{"TUTTI_MEMORY_LIMIT", "1500000"}}));
}

TEST(Memory, ALimitThatIsTooLowIsAClearError) {
  Options options;
  options.memory_limit = 10'000;
  try {
    Communicator::in_process(4, options);
    FAIL() << "nobody complained";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::memory_limit);
    EXPECT_NE(std::string(error.what()).find("memory_limit is 10000"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("4 ranks"), std::string::npos) << error.what();
  }
}

TEST(Memory, PlansAreCountedAndBounded) {
  expect_no_errors(run_threads(3, [](Communicator& comm) {
    std::vector<float> data(5000);
    MUST(comm.memory().plans < 100'000);
    std::size_t most = 0;
    for (std::size_t count = 1; count < 3000; ++count) {
      comm.all_reduce(data.data(), data.data(), count, DataType::f32);
      if (count == 1000) most = comm.memory().plans;
    }
    MUST(most > 0);
    MUST(comm.memory().plans < most * 2);  // the cache is full by then
  }));
}

TEST(Memory, ManyCommunicatorsOneAfterTheOtherDoNotAddUp) {
  const auto make_and_drop = [](int times) {
    for (int i = 0; i < times; ++i) {
      std::vector<Communicator> all = Communicator::in_process(2);
      std::thread other([&] { all[1].barrier(); });
      all[0].barrier();
      other.join();
    }
  };
  make_and_drop(100);
  const std::size_t before = status_kb("VmRSS:");
  const int descriptors = open_descriptors();
  make_and_drop(900);
  // One window touched is at least 100 KiB; 900 of them would be 90 MB.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // these keep freed memory on purpose
  EXPECT_LT(status_kb("VmRSS:"), before + 20'000);
#endif
  EXPECT_EQ(open_descriptors(), descriptors);
}

TEST(Memory, ManyChildrenOfProcessesDoNotAddUp) {
  const auto body = [](Communicator& world) -> std::string {
    const auto make_and_drop = [&](int times) {
      for (int i = 0; i < times; ++i) {
        Communicator child = world.split(0, 0);
        std::int32_t one = 1;
        child.all_reduce(&one, &one, 1, DataType::i32);
        MUST(one == 2);
      }
      world.barrier();
      const Communicator last = world.split(0, 0);  // sweeps up windows that the peer left late
      world.barrier();
    };
    make_and_drop(50);
    const std::size_t arena = arena_bytes();
    const std::size_t resident = status_kb("VmRSS:");
    const int descriptors = open_descriptors();
    make_and_drop(950);
    MUST(open_descriptors() == descriptors);
    MUST(arena_bytes() <= arena + 4 * world.memory().scratch);  // a window waits until every peer has left it
    MUST(status_kb("VmRSS:") < resident + 20'000);
    return "";
  };
  expect_no_errors(run_processes(2, body));
}

}  // namespace
}  // namespace tutti::testing
