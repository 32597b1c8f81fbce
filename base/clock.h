// Time: a cheap tick counter for the hot path and nanoseconds for everything else.
#pragma once

#include <chrono>
#include <cstdint>

namespace tutti {

/// Monotonic nanoseconds; comparable between processes of one host (CLOCK_MONOTONIC).
inline std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Hint to the core that this is a spin loop.
inline void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

}  // namespace tutti
