#include <gtest/gtest.h>

#if TUTTI_HAS_CUDA
#include <cstdio>

#include "tests/support/machine_driver.h"
#endif

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
#if TUTTI_HAS_CUDA
  if (tutti::testing::on_the_machine()) {
    std::printf("TUTTI_TEST_DRIVER is machine: %d GPU(s) were found here\n", tutti::testing::machine_gpus());
    if (tutti::testing::machine_gpus() == 0) return 1;
  }
#endif
  return RUN_ALL_TESTS();
}
