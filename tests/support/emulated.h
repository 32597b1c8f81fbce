// What cannot be tested in a process of another processor's program, run by qemu-user (./dev platforms arm64).
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>

/// Ends the test as skipped where ./dev platforms has set TUTTI_TEST_EMULATED; `why`: "there is no such system call".
#define NOT_EMULATED(why)                              \
  if (std::getenv("TUTTI_TEST_EMULATED") == nullptr) { \
  } else                                               \
    GTEST_SKIP() << "tutti-test: not run under emulation: " << (why)
