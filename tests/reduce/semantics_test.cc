// The promises of reduce.h, one by one, with numbers worked out by hand; through the entry points that callers use.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "collectives/reduce/body.h"
#include "tests/support/oracles/reduce_reference.h"

namespace tutti::reduce::semantics_test {
namespace {

/// One element per source, reduced to one; `times` copies side by side must agree.
template <class T>
T reduced(Spec spec, std::vector<T> elements) {
  constexpr std::size_t kTimes = 37;
  std::vector<std::array<T, kTimes>> sources(elements.size());
  std::vector<const void*> srcs;
  for (std::size_t s = 0; s < elements.size(); ++s) {
    sources[s].fill(elements[s]);
    srcs.push_back(sources[s].data());
  }
  std::array<T, kTimes> result;
  void* const dsts[] = {result.data()};
  reduce(spec, dsts, srcs, kTimes, false);
  for (const T& element : result) EXPECT_EQ(std::memcmp(&element, &result[0], sizeof(T)), 0);
  return result[0];
}

std::uint16_t bf16(float value) { return reference::encode(DataType::bf16, value); }

TEST(Semantics, UsesTheBestBodyOfTheMachine) {
  const char* best = body("avx512") != nullptr ? "avx512" : body("avx2") != nullptr ? "avx2" : "generic";
  EXPECT_STREQ(isa(), best);
  EXPECT_NE(body("generic"), nullptr);
  EXPECT_EQ(body("avx1024"), nullptr);
}

TEST(Semantics, SumsFromLeftToRight) {
  // (2^24 + 1) rounds to 2^24, so does adding 1 again; the other association would give 2^24 + 2.
  EXPECT_EQ(reduced<float>({DataType::f32, ReduceOp::sum}, {0x1p24f, 1, 1}), 0x1p24f);
  EXPECT_EQ(reduced<float>({DataType::f32, ReduceOp::sum}, {1, 1, 0x1p24f}), 0x1p24f + 2);
}

TEST(Semantics, NarrowFloatsRoundOnce) {
  // bf16 has 8 places: 256 + 1 is not one of its numbers, 256 + 1 + 1 is.
  EXPECT_EQ(reduced<std::uint16_t>({DataType::bf16, ReduceOp::sum}, {bf16(256), bf16(1)}), bf16(256));
  EXPECT_EQ(reduced<std::uint16_t>({DataType::bf16, ReduceOp::sum}, {bf16(256), bf16(1), bf16(1)}), bf16(258));
}

TEST(Semantics, OverflowOfNarrowFloats) {
  EXPECT_EQ(reduced<std::uint16_t>({DataType::f16, ReduceOp::sum}, {0x7bff, 0x7bff}), 0x7c00);  // infinity
  EXPECT_EQ(reduced<std::uint8_t>({DataType::f8e5m2, ReduceOp::sum}, {0x7b, 0x7b}), 0x7c);      // infinity
  EXPECT_EQ(reduced<std::uint8_t>({DataType::f8e4m3, ReduceOp::sum}, {0x7e, 0x7e}), 0x7e);      // 448
  EXPECT_EQ(reduced<std::uint8_t>({DataType::f8e4m3, ReduceOp::sum}, {0xfe, 0xfe}), 0xfe);      // -448
  EXPECT_EQ(reduced<std::uint8_t>({DataType::f8e4m3, ReduceOp::prod}, std::vector<std::uint8_t>(16, 0x7e)), 0x7e);
}

TEST(Semantics, IntegersWrap) {
  EXPECT_EQ(reduced<std::int8_t>({DataType::i8, ReduceOp::sum}, {127, 1}), -128);
  EXPECT_EQ(reduced<std::uint8_t>({DataType::u8, ReduceOp::prod}, {16, 17}), 16);
  EXPECT_EQ(reduced<std::int32_t>({DataType::i32, ReduceOp::sum}, {INT32_MIN, -1}), INT32_MAX);
  EXPECT_EQ(reduced<std::int64_t>({DataType::i64, ReduceOp::prod}, {INT64_MAX, 2}), -2);
}

TEST(Semantics, AverageDividesOnce) {
  EXPECT_EQ(reduced<std::int32_t>({DataType::i32, ReduceOp::avg, 2}, {-2, -3}), -2);  // toward zero
  EXPECT_EQ(reduced<std::int8_t>({DataType::i8, ReduceOp::avg, 200}, {100, 27}), 0);  // 200 does not fit the type
  EXPECT_EQ(reduced<std::uint64_t>({DataType::u64, ReduceOp::avg, 2}, {UINT64_MAX - 1, 1}), UINT64_MAX / 2);
  EXPECT_EQ(reduced<float>({DataType::f32, ReduceOp::avg, 0}, {3, 4}), 7);  // 0: not yet
  // (x + x + x) / 3 is x where the sum is exact; times 1/3 it would not be.
  EXPECT_EQ(reduced<float>({DataType::f32, ReduceOp::avg, 3}, {49, 49, 49}), 49);
  EXPECT_EQ(reduced<double>({DataType::f64, ReduceOp::avg, 3}, {49, 49, 49}), 49);
}

TEST(Semantics, IntegerAverageTruncatesExactlyAtTheEdges) {
  const std::uint64_t seed = std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 2000; ++i) {
    const auto by = static_cast<std::int64_t>(1 + random() % (1 << 24));
    // Next to a multiple of the divisor, where a rounded quotient would show.
    const auto multiple = static_cast<std::int64_t>(random() % UINT32_MAX) / by * by;
    for (const std::int64_t x : {multiple - 1, multiple, multiple + 1}) {
      const auto u = static_cast<std::uint32_t>(x);
      const auto s = static_cast<std::int32_t>(x);
      ASSERT_EQ(reduced<std::uint32_t>({DataType::u32, ReduceOp::avg, static_cast<double>(by)}, {u}), u / by);
      ASSERT_EQ(reduced<std::int32_t>({DataType::i32, ReduceOp::avg, static_cast<double>(by)}, {s}), s / by);
    }
  }
}

TEST(Semantics, PremultipliedSumRoundsEachProduct) {
  const double halves[] = {0.5, 1, -1};
  EXPECT_EQ(reduced<float>({DataType::f32, ReduceOp::premul_sum, 0, halves}, {8, 3, 1}), 6);
  EXPECT_EQ(reduced<float>({DataType::f32, ReduceOp::premul_sum, 0, nullptr}, {8, 3, 1}), 12);
  // 1.0078125^2 = 1.01568603515625, in bf16 1.015625: without the rounding the difference would not vanish.
  const double near_one[] = {1.0078125, 1};
  EXPECT_EQ(
      reduced<std::uint16_t>({DataType::bf16, ReduceOp::premul_sum, 0, near_one}, {bf16(1.0078125f), bf16(-1.015625f)}),
      bf16(0));
  // The same for f32: a fused multiply-add would leave 2^-46.
  const double one_ulp[] = {1 + 0x1p-23, 1};
  EXPECT_EQ(reduced<float>({DataType::f32, ReduceOp::premul_sum, 0, one_ulp}, {1 + 0x1p-23f, -1 - 0x1p-22f}), 0.0f);
  const double odd[] = {2.9, 1e300};
  EXPECT_EQ(reduced<std::int32_t>({DataType::i32, ReduceOp::premul_sum, 0, odd}, {5, 0}), 10);
  const double clamped[] = {-7};
  EXPECT_EQ(reduced<std::uint8_t>({DataType::u8, ReduceOp::premul_sum, 0, clamped}, {5}), 0);
}

TEST(Semantics, BitsAreCombinedOneByOne) {
  EXPECT_EQ(reduced<std::uint8_t>({DataType::u8, ReduceOp::band}, {0b1110, 0b0111, 0b1101}), 0b0100);
  EXPECT_EQ(reduced<std::uint8_t>({DataType::u8, ReduceOp::bor}, {0b1000, 0b0001, 0b0001}), 0b1001);
  EXPECT_EQ(reduced<std::uint8_t>({DataType::u8, ReduceOp::bxor}, {0b1100, 0b1010, 0b0001}), 0b0111);
  EXPECT_EQ(reduced<std::int8_t>({DataType::i8, ReduceOp::band}, {-1, -128}), -128);
  EXPECT_EQ(reduced<std::int32_t>({DataType::i32, ReduceOp::bxor}, {INT32_MIN, -1}), INT32_MAX);
  EXPECT_EQ(reduced<std::int64_t>({DataType::i64, ReduceOp::bor}, {INT64_MIN, 1}), INT64_MIN + 1);
  EXPECT_EQ(reduced<std::uint64_t>({DataType::u64, ReduceOp::band}, {UINT64_MAX, 1ULL << 40}), 1ULL << 40);
  EXPECT_EQ(reduced<std::uint32_t>({DataType::u32, ReduceOp::bor}, {7}), 7u);
}

TEST(Semantics, MinAndMaxKeepNanAndOrderZeros) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
    EXPECT_TRUE(std::isnan(reduced<float>({DataType::f32, op}, {nan, 1, 2})));
    EXPECT_TRUE(std::isnan(reduced<float>({DataType::f32, op}, {1, nan, 2})));
    EXPECT_TRUE(std::isnan(reduced<float>({DataType::f32, op}, {1, 2, -nan})));
    for (const auto& zeros : {std::vector<float>{0.0f, -0.0f}, std::vector<float>{-0.0f, 0.0f}}) {
      EXPECT_EQ(std::signbit(reduced<float>({DataType::f32, op}, zeros)), op == ReduceOp::min);
    }
  }
  EXPECT_EQ(reduced<std::int8_t>({DataType::i8, ReduceOp::min}, {-1, 1}), -1);
  EXPECT_EQ(reduced<std::uint8_t>({DataType::u8, ReduceOp::min}, {255, 1}), 1);
}

TEST(Semantics, NanHasOnePattern) {
  const auto payload = std::bit_cast<float>(0xffc12345u);
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(std::bit_cast<std::uint32_t>(reduced<float>({DataType::f32, ReduceOp::sum}, {payload, 1})), 0x7fc00000u);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(reduced<float>({DataType::f32, ReduceOp::sum}, {infinity, -infinity})),
            0x7fc00000u);
  EXPECT_EQ(reduced<std::uint16_t>({DataType::f16, ReduceOp::sum}, {0xfd01, 0}), 0x7e00);
  EXPECT_EQ(reduced<std::uint16_t>({DataType::bf16, ReduceOp::max}, {0xff81, 0}), 0x7fc0);
  EXPECT_EQ(reduced<std::uint8_t>({DataType::f8e4m3, ReduceOp::sum}, {0xff, 0}), 0x7f);
}

TEST(Copy, ReachesEveryDestinationAndNothingElse) {
  const std::uint64_t seed = std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 3000; ++i) {
    const std::size_t bytes = random() % (i % 50 == 0 ? 50000 : 400);
    const std::size_t n_dsts = 1 + random() % 3;
    const bool streaming = random() % 2 == 0;
    const bool to_itself = random() % 8 == 0;
    std::vector<unsigned char> source(bytes + 128);
    for (unsigned char& byte : source) byte = static_cast<unsigned char>(random());
    const std::vector<unsigned char> original = source;
    const std::size_t from = random() % 64;
    std::vector<std::vector<unsigned char>> memory(n_dsts, std::vector<unsigned char>(bytes + 128, 0xa5));
    std::vector<std::vector<unsigned char>> expected = memory;
    std::vector<void*> dsts;
    for (std::size_t d = 0; d < n_dsts; ++d) {
      const std::size_t to = random() % 64;
      dsts.push_back(&memory[d][to]);
      std::copy_n(&original[from], bytes, &expected[d][to]);
    }
    if (to_itself) dsts.push_back(&source[from]);
    for (const char* isa : {"generic", "avx2", "avx512"}) {
      const Body* found = body(isa);
      if (found == nullptr) continue;
      for (auto& block : memory) std::fill(block.begin(), block.end(), static_cast<unsigned char>(0xa5));
      copy_with(*found, dsts, &source[from], bytes, streaming);
      ASSERT_EQ(memory, expected) << isa << ", " << bytes << " bytes, seed " << seed;
      ASSERT_EQ(source, original) << isa << ", " << bytes << " bytes, seed " << seed;
    }
  }
}

}  // namespace
}  // namespace tutti::reduce::semantics_test
