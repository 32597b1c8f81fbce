// What is asked for when a communicator or memory is made: refused where it cannot be had.
#include <chrono>
#include <string>
#include <thread>

#include "tests/collectives/ranks.h"

namespace tutti::testing::create_test {
namespace {

std::string refusal(int ranks, const Options& options) {
  try {
    Communicator::in_process(ranks, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Create, RefusesWhatMakesNoSense) {
  Options options;
  options.timeout = std::chrono::milliseconds(0);
  EXPECT_EQ(refusal(2, options), "timeout is 0 ms; expected more than 0");
  options = {};
  options.algorithm = "rign";
  EXPECT_EQ(refusal(2, options), "algorithm is 'rign', which no collective has");
  EXPECT_EQ(refusal(1025, {}), "size is 1025; expected at most 1024 ranks");
}

TEST(Create, RefusesMemoryThatNoMachineHas) {
  const auto code_of = [](const auto& make) {
    try {
      make();
    } catch (const Error& error) {
      return error.code();
    }
    return Code::ok;
  };
  EXPECT_EQ(code_of([] { allocate(SIZE_MAX); }), Code::memory_limit);
  EXPECT_EQ(code_of([] { allocate(SIZE_MAX - 4095); }), Code::memory_limit);
  EXPECT_EQ(code_of([] { const Buffer<double> huge(SIZE_MAX / 8 + 2); }), Code::memory_limit);
}

TEST(Create, ATimeoutMayBeForEver) {
  Options options;
  options.timeout = std::chrono::milliseconds::max();
  expect_no_errors(run_threads(
      2,
      [](Communicator& comm) {
        // Past the spinning, so that the deadline is looked at.
        if (comm.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        comm.barrier();
      },
      options));
}

}  // namespace
}  // namespace tutti::testing::create_test
