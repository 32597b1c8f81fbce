// Every body against the scalar reference, to the bit, over random shapes: sizes, alignments, numbers of sources and
// destinations, aliasing, streaming, and inputs full of special values.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "collectives/reduce/body.h"
#include "tests/support/oracles/reduce_reference.h"

namespace tutti::reduce::bodies_test {
namespace {

std::vector<const Body*> bodies() {
  std::vector<const Body*> all;
  for (const char* isa : {"generic", "avx2", "avx512"}) {
    if (const Body* found = body(isa)) all.push_back(found);
  }
  return all;
}

bool is_float(DataType type) {
  switch (type) {
    case DataType::i8:
    case DataType::u8:
    case DataType::i32:
    case DataType::u32:
    case DataType::i64:
    case DataType::u64: return false;
    default: return true;
  }
}

class Inputs {
 public:
  explicit Inputs(std::uint64_t seed) : random_(seed) {}

  std::size_t below(std::size_t n) { return random_() % n; }
  bool one_in(std::size_t n) { return below(n) == 0; }

  void fill(DataType type, unsigned char* to, std::size_t count) {
    const std::size_t size = size_of(type);
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t bits = element(type);
      std::memcpy(to + i * size, &bits, size);
    }
  }

 private:
  /// The bits of one element: a quarter each of any bits, of extremes, and half of numbers of middling size.
  std::uint64_t element(DataType type) {
    const int bits = static_cast<int>(8 * size_of(type));
    const std::uint64_t all = ~std::uint64_t{0} >> (64 - bits);
    const std::size_t kind = below(4);
    if (kind == 0) return random_() & all;
    if (kind == 1) {
      // 0, 1, -1, the largest, the smallest and their neighbours of integers; of floats zeros, the smallest subnormals
      // and NaNs with many payloads. Infinity lies in the middle of the exponents, so it is listed.
      const std::uint64_t sign = std::uint64_t{1} << (bits - 1);
      const std::uint64_t infinity = infinity_of(type);
      const std::uint64_t list[] = {0,        1,        2,        all,          all - 1,      sign,           sign + 1,
                                    sign - 1, sign - 2, infinity, infinity + 1, infinity - 1, sign | infinity};
      return list[below(std::size(list))] & all;
    }
    const double value = std::uniform_real_distribution<double>(-8, 8)(random_);
    if (!is_float(type)) return static_cast<std::uint64_t>(static_cast<std::int64_t>(value)) & all;
    if (type == DataType::f64) return __builtin_bit_cast(std::uint64_t, value);
    if (type == DataType::f32) return __builtin_bit_cast(std::uint32_t, static_cast<float>(value));
    return reference::encode(type, static_cast<float>(value));
  }

  static std::uint64_t infinity_of(DataType type) {
    switch (type) {
      case DataType::f16: return 0x7c00;
      case DataType::bf16: return 0x7f80;
      case DataType::f32: return 0x7f800000;
      case DataType::f64: return 0x7ff0000000000000;
      case DataType::f8e5m2: return 0x7c;
      default: return 0x7e;  // of f8e4m3 the largest number
    }
  }

  std::mt19937_64 random_;
};

/// `bytes` bytes at an offset inside memory filled with a pattern, to see what is written beside them.
struct Buffer {
  Buffer(std::size_t bytes, std::size_t offset) : memory(bytes + offset + 256, 0xa5), begin(offset), bytes(bytes) {
    begin += (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
  }
  Buffer(const Buffer& other) = delete;
  Buffer(Buffer&&) = default;
  unsigned char* data() { return memory.data() + begin; }
  bool surroundings_untouched() const {
    const auto is_pattern = [](unsigned char byte) { return byte == 0xa5; };
    return std::all_of(memory.begin(), memory.begin() + begin, is_pattern) &&
           std::all_of(memory.begin() + begin + bytes, memory.end(), is_pattern);
  }
  std::vector<unsigned char> memory;
  std::size_t begin;
  std::size_t bytes;
};

/// One random call, made through the reference and through every body.
void check_once(Inputs& inputs, DataType type, ReduceOp op, std::size_t count) {
  const std::size_t n_srcs = inputs.one_in(3) ? 2 : 1 + inputs.below(9);
  const std::size_t n_dsts = inputs.one_in(2) ? 1 : 1 + inputs.below(4);
  const bool streaming = inputs.one_in(2);
  const std::size_t bytes = count * size_of(type);

  constexpr double kDivisors[] = {0, 1, 2, 3, 7, 200, 65537, 1 << 24};
  constexpr double kFactors[] = {1, 1, 0.5, 1.0 / 3, -3, 0, -0.0, 300, 1e30, -1e30, 1e-42};
  std::vector<double> factors;
  for (std::size_t s = 0; s < n_srcs; ++s) {
    factors.push_back(inputs.one_in(20) ? std::numeric_limits<double>::quiet_NaN()
                                        : kFactors[inputs.below(std::size(kFactors))]);
  }
  const Spec spec{type, op, kDivisors[inputs.below(std::size(kDivisors))], inputs.one_in(8) ? nullptr : factors.data()};

  // Offsets: the same whole number of elements for all destinations (what streaming needs), or any byte.
  const std::size_t common = inputs.below(64 / size_of(type)) * size_of(type);
  const bool aligned = inputs.one_in(2);
  std::vector<Buffer> sources;
  std::vector<Buffer> destinations;
  std::vector<std::size_t> alias(n_dsts, n_srcs);  // which source a destination is; n_srcs: none
  for (std::size_t s = 0; s < n_srcs; ++s) {
    sources.emplace_back(bytes, aligned ? common : inputs.below(70));
    inputs.fill(type, sources.back().data(), count);
  }
  for (std::size_t d = 0; d < n_dsts; ++d) {
    destinations.emplace_back(bytes, aligned ? common : inputs.below(70));
    if (inputs.one_in(4)) alias[d] = inputs.below(n_srcs);
  }
  std::vector<std::vector<unsigned char>> originals;
  for (Buffer& source : sources) originals.emplace_back(source.data(), source.data() + bytes);

  std::vector<const void*> srcs;
  std::vector<void*> dsts;
  for (Buffer& source : sources) srcs.push_back(source.data());
  for (std::size_t d = 0; d < n_dsts; ++d) {
    dsts.push_back(alias[d] < n_srcs ? sources[alias[d]].data() : destinations[d].data());
  }

  std::vector<unsigned char> expected(bytes);
  void* const expected_dst[] = {expected.data()};
  reference::reduce(spec, expected_dst, srcs, count);

  for (const Body* body : bodies()) {
    for (std::size_t s = 0; s < n_srcs; ++s) std::copy(originals[s].begin(), originals[s].end(), sources[s].data());
    for (Buffer& destination : destinations) std::fill_n(destination.data(), bytes, static_cast<unsigned char>(0x5a));
    reduce_with(*body, spec, dsts, srcs, count, streaming);

    const std::string what = std::string(body->isa) + " " + name_of(type) + " " + name_of(op) + " count " +
                             std::to_string(count) + ", " + std::to_string(n_srcs) + " sources, " +
                             std::to_string(n_dsts) + " destinations, divide_by " + std::to_string(spec.divide_by);
    for (std::size_t d = 0; d < n_dsts; ++d) {
      const auto* got = static_cast<const unsigned char*>(dsts[d]);
      for (std::size_t i = 0; i < bytes; ++i) {
        ASSERT_EQ(int{got[i]}, int{expected[i]}) << what << ", destination " << d << " byte " << i;
      }
    }
    for (std::size_t s = 0; s < n_srcs; ++s) {
      ASSERT_TRUE(sources[s].surroundings_untouched()) << what;
      const bool overwritten = std::find(alias.begin(), alias.end(), s) != alias.end();
      ASSERT_TRUE(overwritten || std::equal(originals[s].begin(), originals[s].end(), sources[s].data())) << what;
    }
    for (Buffer& destination : destinations) ASSERT_TRUE(destination.surroundings_untouched()) << what;
  }
}

class Bodies : public ::testing::TestWithParam<DataType> {};

TEST_P(Bodies, EqualTheReferenceInEveryBit) {
  const std::uint64_t seed = std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  RecordProperty("seed", std::to_string(seed));
  Inputs inputs(seed);
  for (int op = 0; op < kReduceOps; ++op) {
    if (!applies(static_cast<ReduceOp>(op), GetParam())) continue;
    for (std::size_t count = 0; count <= 130; ++count) {
      for (int repeat = 0; repeat < 6; ++repeat) {
        ASSERT_NO_FATAL_FAILURE(check_once(inputs, GetParam(), static_cast<ReduceOp>(op), count)) << "seed " << seed;
      }
    }
    for (const std::size_t count : {191, 255, 256, 257, 1021, 4096, 4099, 20011}) {
      ASSERT_NO_FATAL_FAILURE(check_once(inputs, GetParam(), static_cast<ReduceOp>(op), count)) << "seed " << seed;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Bodies,
                         ::testing::Values(DataType::i8, DataType::u8, DataType::i32, DataType::u32, DataType::i64,
                                           DataType::u64, DataType::f16, DataType::bf16, DataType::f32, DataType::f64,
                                           DataType::f8e4m3, DataType::f8e5m2),
                         [](const auto& type) { return name_of(type.param); });

}  // namespace
}  // namespace tutti::reduce::bodies_test
