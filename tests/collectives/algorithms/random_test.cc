// Random programs on threads. A failure prints the seed; TUTTI_TEST_SEED repeats it.
#include <string>

#include "tests/collectives/random_programs.h"
#include "tests/collectives/ranks.h"

namespace tutti::testing::random_test {
namespace {

TEST(RandomPrograms, OnThreads) {
  const unsigned seed = program_seed();
  SCOPED_TRACE("TUTTI_TEST_SEED=" + std::to_string(seed));
  for (const int ranks : {2, 3, 6}) {
    expect_no_errors(run_threads(ranks, [seed](Communicator& comm) { RandomProgram(comm, seed).run(150); }));
  }
}

}  // namespace
}  // namespace tutti::testing::random_test
