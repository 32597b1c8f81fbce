// Instructions that differ between processors: the pause of a spin loop, a counter of time, and stores that bypass the
// caches. Vectors are in collectives/reduce.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace tutti {

/// Hint to the core that this is a spin loop.
inline void cpu_relax() {
#if defined(__SSE2__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

#if defined(__SSE2__) || defined(__aarch64__)
#define TUTTI_HAS_CPU_TICKS 1
/// Returns a counter that is the same on all cores of a host and grows at a constant rate.
inline std::uint64_t cpu_ticks() {
#if defined(__SSE2__)
  return __builtin_ia32_rdtsc();
#else
  std::uint64_t ticks = 0;
  asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
#endif
}
#endif

/// Copies with stores that bypass the caches, if the processor has them. Arm's cores detect long runs of stores
/// themselves, so plain stores serve there. REQUIRES: `to` and `bytes` are multiples of 16.
inline void stream(void* to, const void* from, std::size_t bytes) {
#if defined(__SSE2__)
  auto* into = static_cast<__m128i*>(to);
  const auto* out_of = static_cast<const __m128i*>(from);
  for (std::size_t i = 0; i < bytes / sizeof(__m128i); ++i) _mm_stream_si128(into + i, _mm_loadu_si128(out_of + i));
#else
  std::memcpy(to, from, bytes);
#endif
}

/// Call after stream() and before the release store that publishes it: on x86 a release orders ordinary stores only.
inline void stream_fence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace tutti
