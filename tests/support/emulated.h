// What cannot be tested in a process of another processor's program, run by qemu-user (./dev platforms arm64).
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>

namespace tutti::testing {

/// TUTTI_TEST_EMULATED, which ./dev platforms sets.
inline bool is_emulated() { return std::getenv("TUTTI_TEST_EMULATED") != nullptr; }

}  // namespace tutti::testing

/// Ends the test as skipped there; `why`: "the kernel does not start its program".
#define NOT_EMULATED(why) \
  if (::tutti::testing::is_emulated()) GTEST_SKIP() << "tutti-test: not run under emulation: " << (why)
