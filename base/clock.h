// Time: a cheap tick counter for the hot path and nanoseconds for everything else.
#pragma once

#include <time.h>

#include <chrono>
#include <cstdint>

#include "base/cpu.h"

namespace tutti {

/// Monotonic nanoseconds; comparable between processes of one host (CLOCK_MONOTONIC).
inline std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Nanoseconds that the calling thread has spent on a core: what it waited for one does not count.
inline std::int64_t thread_cpu_ns() {
  timespec spent{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
  return std::int64_t{spent.tv_sec} * 1'000'000'000 + spent.tv_nsec;
}

/// The processor's counter of time: a few nanoseconds to read, the same on all cores of a host. For the flight
/// recorder, which stamps every call; turned into time only when it is printed.
inline std::uint64_t ticks() {
#if defined(TUTTI_HAS_CPU_TICKS)
  return cpu_ticks();
#else
  return static_cast<std::uint64_t>(now_ns());
#endif
}

/// now_ns() at the moment when ticks() was `t`. Measures the counter's rate on first use (about 2 ms).
std::int64_t ns_of_ticks(std::uint64_t t);

}  // namespace tutti
