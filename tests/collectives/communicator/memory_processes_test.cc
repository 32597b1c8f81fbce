// What a communicator among processes takes, and that its limit is kept.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/pages.h"
#include "tests/collectives/conformance.h"
#include "tests/collectives/must.h"
#include "tests/collectives/processes.h"
#include "tests/support/usage.h"
#include "transport/shm/arena.h"

namespace tutti::testing::memory_processes_test {
namespace {

std::size_t arena_bytes() { return transport::Arena::process().value()->allocated(); }

TEST(MemoryOfProcesses, ProcessesTakeWhatIsReported) {
  for (const char* cross_memory : {"on", "off"}) {
    const auto body = [](Communicator& world) -> std::string {
      const std::size_t before = arena_bytes();
      Communicator comm = world.split(0, 0);
      const std::size_t taken = arena_bytes() - before;
      const std::size_t reported = comm.memory().scratch;
      MUST(taken >= reported && taken < reported + page_bytes());
      use_all(comm);
      MUST(arena_bytes() - before == taken);
      // Cross-memory access reads into a buffer on the heap; that is reported too.
      MUST(comm.memory().scratch == reported || comm.memory().scratch - reported <= (std::size_t{513} << 10));
      return "";
    };
    expect_no_errors(run_processes(3, body, {{"TUTTI_CROSS_MEMORY", cross_memory}}));
  }
}

TEST(MemoryOfProcesses, ALimitIsKept) {
  const auto body = [](Communicator& world) -> std::string {
    const std::size_t limit = 1'500'000;
    MUST(world.memory().scratch <= limit);
    use_all(world);
    MUST(world.memory().scratch <= limit);
    Communicator child = world.split(0, 0);
    use_all(child);
    MUST(child.memory().scratch <= limit);
    return "";
  };
  expect_no_errors(run_processes(3, body, {{"TUTTI_MEMORY_LIMIT", "1500000"}}));
}

TEST(MemoryOfProcesses, ManyChildrenOfProcessesDoNotAddUp) {
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
    [[maybe_unused]] const std::size_t resident = status_kb("VmRSS:");
    const int descriptors = open_descriptors();
    make_and_drop(950);
    MUST(open_descriptors() == descriptors);
    MUST(arena_bytes() <= arena + 4 * world.memory().scratch);  // a window waits until every peer has left it
#if !defined(__SANITIZE_ADDRESS__)                              // keeps freed memory on purpose
    MUST(status_kb("VmRSS:") < resident + 20'000);
#endif
    world.barrier();  // a rank that leaves closes its connection to the others
    return "";
  };
  expect_no_errors(run_processes(2, body));
}

}  // namespace
}  // namespace tutti::testing::memory_processes_test
