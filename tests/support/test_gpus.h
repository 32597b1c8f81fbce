// The GPUs of a test of device memory: those of a fake driver or, with TUTTI_TEST_DRIVER=machine (./dev gpu device),
// this machine's own.
//
//   TEST(DeviceCalls, Something) {
//     NEEDS_GPUS(2);                    // or NEEDS_FAKE_DRIVER("it plants a fault")
//     TestGpus gpus({.devices = 2});    // the process's driver until its end, with Tutti's kernels
#pragma once

#include <gtest/gtest.h>

#include <optional>

#include "tests/support/fake_cuda/driver.h"
#include "tests/support/fake_cuda/walkers.h"
#include "tests/support/machine_driver.h"

namespace tutti::testing {

class TestGpus {
 public:
  /// The machine's own are as they are.
  explicit TestGpus(const FakeMachine& machine = {}) {
    if (!on_the_machine()) add_walkers(fake_.emplace(machine));
  }

  /// For what only a fake one can tell or do; null on the machine's own.
  FakeDriver* fake() { return fake_ ? &*fake_ : nullptr; }

 private:
  std::optional<FakeDriver> fake_;
};

}  // namespace tutti::testing

/// In a test or its SetUp() itself: of a function that these call it ends that function alone.
#define NEEDS_GPUS(count)                                                           \
  if (tutti::testing::on_the_machine() && tutti::testing::machine_gpus() < (count)) \
  GTEST_SKIP() << "it needs " << (count) << " GPUs, and this machine has " << tutti::testing::machine_gpus()
#define NEEDS_FAKE_DRIVER(why) \
  if (tutti::testing::on_the_machine()) GTEST_SKIP() << "on a fake driver alone: " << (why)
