// Random programs on processes. A failure prints the seed; TUTTI_TEST_SEED repeats it.
#include <cstddef>
#include <iterator>
#include <string>

#include "tests/collectives/processes.h"
#include "tests/collectives/random_programs.h"

namespace tutti::testing::random_processes_test {
namespace {

TEST(RandomPrograms, OnProcesses) {
  const unsigned seed = program_seed();
  SCOPED_TRACE("TUTTI_TEST_SEED=" + std::to_string(seed));
  const Environment environments[] = {
      {}, {{"TUTTI_CROSS_MEMORY", "off"}}, {{"TUTTI_SCRATCH", "64K"}}, {{"TUTTI_SPIN", "0us"}}};
  for (std::size_t i = 0; i < std::size(environments); ++i) {
    const auto body = [&](Communicator& comm) -> std::string {
      RandomProgram(comm, seed + static_cast<unsigned>(i)).run(150);
      return "";
    };
    expect_no_errors(run_processes(2 + static_cast<int>(i), body, environments[i]));
  }
}

}  // namespace
}  // namespace tutti::testing::random_processes_test
