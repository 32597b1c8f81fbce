// Random numbers that are the same on every machine and need no shared state: for data order, synthetic data and tests.
//
//   Random random(seed, 17);          // stream 17 of the seed; streams do not disturb each other
//   random.below(6) + 1;              // a die
//
// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014). Not for secrets.
#pragma once

#include <cstdint>

namespace tutti::training {

/// The output function of SplitMix64: a bijection of 64-bit words.
constexpr std::uint64_t mix64(std::uint64_t z) {
  z += 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

class Random {
 public:
  explicit constexpr Random(std::uint64_t seed, std::uint64_t stream = 0) : state_(mix64(mix64(seed) ^ stream)) {}

  constexpr std::uint64_t next() {
    const std::uint64_t result = mix64(state_);
    state_ += 0x9E3779B97F4A7C15;
    return result;
  }
  /// 0 to bound - 1; exactly uniform. REQUIRES: bound > 0.
  constexpr std::uint64_t below(std::uint64_t bound) {
    const std::uint64_t reject = (0 - bound) % bound;  // 2^64 mod bound: values below it would come once too often
    std::uint64_t value = next();
    while (value < reject) value = next();
    return value % bound;
  }
  /// [0, 1), in steps of 2^-53.
  constexpr double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  /// [low, high).
  constexpr double between(double low, double high) { return low + (high - low) * uniform(); }
  /// Mean 0, deviation 1, about normal: the sum of 12 uniform numbers. No function whose last bit a machine may choose.
  constexpr double about_normal() {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum;
  }

 private:
  std::uint64_t state_;
};

}  // namespace tutti::training
