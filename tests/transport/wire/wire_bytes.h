// What the tests of wires put, so that a byte in the wrong place is seen.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti::testing {

/// The byte at `i` of what was put with number `seed`.
inline std::byte wire_byte(std::uint64_t seed, std::size_t i) {
  return static_cast<std::byte>((seed * 0x9E3779B97F4A7C15ull + i * 0x2545F491u + (i >> 8) * 7) >> 24);
}
inline void fill(std::byte* at, std::size_t bytes, std::uint64_t seed) {
  for (std::size_t i = 0; i < bytes; ++i) at[i] = wire_byte(seed, i);
}
/// The first byte that is not as fill() writes it; `bytes`: none.
inline std::size_t first_wrong(const std::byte* at, std::size_t bytes, std::uint64_t seed) {
  for (std::size_t i = 0; i < bytes; ++i) {
    if (at[i] != wire_byte(seed, i)) return i;
  }
  return bytes;
}

}  // namespace tutti::testing
