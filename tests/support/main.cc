#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "tests/support/file_filter.h"
#if TUTTI_HAS_CUDA
#include "tests/support/machine_driver.h"
#endif

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (const std::string wrong = tutti::testing::narrow_to_file(argc, argv); !wrong.empty()) {
    std::fprintf(stderr, "%s\n", wrong.c_str());
    return 2;
  }
#if TUTTI_HAS_CUDA
  if (tutti::testing::on_the_machine()) {
    std::printf("TUTTI_TEST_DRIVER is machine: %d GPU(s) were found here\n", tutti::testing::machine_gpus());
    if (tutti::testing::machine_gpus() == 0) return 1;
  }
#endif
  const int status = RUN_ALL_TESTS();
  // Whatever its status, ctest takes a program that says this for skipped: so no failure may be beside it.
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  if (status == 0 && all.successful_test_count() == 0 && all.skipped_test_count() > 0) {
    std::printf("tutti-test: none of these tests could run here\n");
  }
  return status;
}
