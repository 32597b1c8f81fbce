// The 16- and 8-bit floats, exhaustively: first the reference against the formats' definitions, then every body
// against the reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "collectives/reduce/body.h"
#include "tests/support/oracles/reduce_reference.h"

namespace tutti::reduce::conversions_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Facts {
  DataType type;
  int codes;              // how many there are
  std::uint16_t one;      // the code of 1
  std::uint16_t largest;  // of the largest finite number
  float largest_value;
  float smallest_subnormal;  // its code is 1
  std::uint16_t nan;         // the canonical one
  bool infinity;
};

// From IEEE 754 binary16, the bfloat16 definition (the upper half of binary32), and OCP 8-bit Floating Point, table 1.
const Facts kFacts[] = {
    {DataType::f16, 0x10000, 0x3c00, 0x7bff, 65504.0f, 0x1p-24f, 0x7e00, true},
    {DataType::bf16, 0x10000, 0x3f80, 0x7f7f, 0x1.fep127f, 0x1p-133f, 0x7fc0, true},
    {DataType::f8e4m3, 0x100, 0x38, 0x7e, 448.0f, 0x1p-9f, 0x7f, false},
    {DataType::f8e5m2, 0x100, 0x3c, 0x7b, 57344.0f, 0x1p-16f, 0x7e, true},
};

class Conversions : public ::testing::TestWithParam<Facts> {};

TEST_P(Conversions, ReferenceKnowsTheFormat) {
  const Facts f = GetParam();
  const std::uint16_t sign = static_cast<std::uint16_t>(f.codes / 2);
  EXPECT_EQ(reference::decode(f.type, 0), 0.0f);
  EXPECT_TRUE(std::signbit(reference::decode(f.type, sign)));
  EXPECT_EQ(reference::decode(f.type, f.one), 1.0f);
  EXPECT_EQ(reference::decode(f.type, 1), f.smallest_subnormal);
  EXPECT_EQ(reference::decode(f.type, f.largest), f.largest_value);
  EXPECT_EQ(reference::encode(f.type, NAN), f.nan);
  EXPECT_EQ(reference::encode(f.type, -NAN), f.nan);
  EXPECT_TRUE(std::isnan(reference::decode(f.type, f.nan)));
  const std::uint16_t beyond = f.infinity ? f.largest + 1 : f.largest;
  EXPECT_EQ(reference::encode(f.type, kInfinity), beyond);
  EXPECT_EQ(reference::encode(f.type, -kInfinity), sign | beyond);
  EXPECT_EQ(reference::encode(f.type, std::numeric_limits<float>::max()), beyond);
  EXPECT_EQ(reference::encode(f.type, f.smallest_subnormal / 2), 0);
}

// Positive codes are in the order of their values. So encode is right if each code comes back as itself, the middle
// between two neighbours goes to the even one, and what lies just beside the middle goes to its side.
TEST_P(Conversions, ReferenceRoundsToNearestEven) {
  const Facts f = GetParam();
  for (int code = 0; code <= f.largest; ++code) {
    const float value = reference::decode(f.type, static_cast<std::uint16_t>(code));
    ASSERT_EQ(reference::encode(f.type, value), code);
    ASSERT_EQ(reference::encode(f.type, -value), code | f.codes / 2);
    if (code == f.largest) break;
    const float next = reference::decode(f.type, static_cast<std::uint16_t>(code + 1));
    ASSERT_LT(value, next);
    const float middle = value + (next - value) / 2;  // exact: f32 has more places, and more exponents or (bf16) places
    ASSERT_EQ(reference::encode(f.type, middle), code % 2 == 0 ? code : code + 1);
    ASSERT_EQ(reference::encode(f.type, std::nextafter(middle, 0.0f)), code);
    ASSERT_EQ(reference::encode(f.type, std::nextafter(middle, kInfinity)), code + 1);
  }
}

/// All codes of the type, in order, combined with one partner in two-source calls; and alone with one source.
TEST_P(Conversions, BodiesEqualTheReferenceOnAllCodes) {
  const Facts f = GetParam();
  const std::size_t size = size_of(f.type);
  const auto all_codes = [&](auto code_at) {
    std::vector<unsigned char> bytes(f.codes * size);
    for (int i = 0; i < f.codes; ++i) {
      const std::uint16_t code = code_at(i);
      std::memcpy(&bytes[i * size], &code, size);
    }
    return bytes;
  };
  const std::vector<unsigned char> codes = all_codes([](int i) { return static_cast<std::uint16_t>(i); });
  std::vector<unsigned char> expected(codes.size());
  std::vector<unsigned char> got(codes.size());
  void* const expected_dst[] = {expected.data()};
  void* const got_dst[] = {got.data()};

  const auto check = [&](const Spec& spec, std::span<const void* const> srcs) {
    reference::reduce(spec, expected_dst, srcs, f.codes);
    for (const char* isa : {"generic", "avx2", "avx512"}) {
      const Body* found = body(isa);
      if (found == nullptr) continue;
      std::fill(got.begin(), got.end(), static_cast<unsigned char>(0x5a));
      reduce_with(*found, spec, got_dst, srcs, f.codes, false);
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(int{got[i]}, int{expected[i]}) << isa << " " << name_of(spec.op) << ", code " << i / size;
      }
    }
  };

  const void* const alone[] = {codes.data()};
  ASSERT_NO_FATAL_FAILURE(check({f.type, ReduceOp::sum}, alone));
  // The reference gives every number back as itself, so the bodies do.
  for (int i = 0; i < f.codes; ++i) {
    std::uint16_t code = 0;
    std::memcpy(&code, &expected[i * size], size);
    const bool nan = std::isnan(reference::decode(f.type, static_cast<std::uint16_t>(i)));
    ASSERT_EQ(int{code}, nan ? int{f.nan} : i);
  }

  // Partners: for 8 bits all, for 16 bits 64 of them. Sums and halved sums of neighbours are the ties.
  for (int step = 0; step < (f.codes == 256 ? 256 : 64); ++step) {
    const int partner = f.codes == 256 ? step : step * 1021 % f.codes;
    const std::vector<unsigned char> same = all_codes([&](int) { return static_cast<std::uint16_t>(partner); });
    const void* const pair[] = {codes.data(), same.data()};
    ASSERT_NO_FATAL_FAILURE(check({f.type, ReduceOp::sum}, pair)) << "partner " << partner;
    ASSERT_NO_FATAL_FAILURE(check({f.type, ReduceOp::prod}, pair)) << "partner " << partner;
  }
  const std::vector<unsigned char> neighbours = all_codes([](int i) { return static_cast<std::uint16_t>(i ^ 1); });
  const std::vector<unsigned char> next = all_codes([](int i) { return static_cast<std::uint16_t>(i + 1); });
  for (const auto* other : {&neighbours, &next}) {
    const void* const pair[] = {codes.data(), other->data()};
    ASSERT_NO_FATAL_FAILURE(check({f.type, ReduceOp::avg, 2}, pair));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Conversions, ::testing::ValuesIn(kFacts),
                         [](const auto& facts) { return name_of(facts.param.type); });

}  // namespace
}  // namespace tutti::reduce::conversions_test
