// What a communicator takes is what it says, a limit is kept, and nothing is left when it goes.
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "tests/collectives/conformance.h"
#include "tests/collectives/must.h"
#include "tests/collectives/ranks.h"
#include "tests/support/usage.h"

namespace tutti::testing::memory_test {
namespace {

TEST(Memory, ASingleRankTakesNone) {
  std::vector<Communicator> all = Communicator::in_process(1);
  use_all(all[0]);
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

TEST(Memory, ALimitThatIsTooLowIsAClearError) {
  Options options;
  options.memory_limit = 10'000;
  try {
    Communicator::in_process(4, options);
    FAIL() << "no rank failed";
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
  [[maybe_unused]] const std::size_t before = status_kb("VmRSS:");
  const int descriptors = open_descriptors();
  make_and_drop(900);
  // One window touched is at least 100 KiB; 900 of them would be 90 MB.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // these keep freed memory on purpose
  EXPECT_LT(status_kb("VmRSS:"), before + 20'000);
#endif
  EXPECT_EQ(open_descriptors(), descriptors);
}

}  // namespace
}  // namespace tutti::testing::memory_test
