// Random programs of messages among processes: by place, by the kernel's copy, and through slots.
#include <cstddef>
#include <iterator>
#include <string>

#include "tests/collectives/processes.h"
#include "tests/collectives/random_programs.h"
#include "tests/collectives/transfer_programs.h"

namespace tutti::testing::transfers_processes_test {
namespace {

TEST(TransfersOfProcesses, RandomPrograms) {
  const unsigned seed = program_seed();
  SCOPED_TRACE("TUTTI_TEST_SEED=" + std::to_string(seed));
  const Environment environments[] = {{}, {{"TUTTI_CROSS_MEMORY", "off"}}, {{"TUTTI_SPIN", "0us"}}};
  for (std::size_t i = 0; i < std::size(environments); ++i) {
    const auto body = [&](Communicator& comm) -> std::string {
      run_transfer_programs(comm, seed + static_cast<unsigned>(i), 3);
      return "";
    };
    expect_no_errors(run_processes(2 + static_cast<int>(i), body, environments[i]));
  }
}

}  // namespace
}  // namespace tutti::testing::transfers_processes_test
