// The benchmarks' data: exact whatever the order of a reduction, and a misplaced element is seen.
#include "perf/driver/pattern.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <tuple>

namespace tutti::perf::pattern_test {
namespace {

/// Whether `value` survives a trip through `type`. encode() itself stops the program for narrow types if it does not.
bool is_value_of(double value, DataType type) {
  alignas(8) unsigned char bits[8] = {};
  if (type != DataType::f32 && type != DataType::f64) {
    if (type == DataType::u8 && (value < 0 || value > 255)) return false;
    if (type == DataType::i8 && (value < -128 || value > 127)) return false;
    if ((type == DataType::u32 || type == DataType::u64) && value < 0) return false;
  }
  encode(value, type, bits);
  return decode(bits, type) == value;
}

class EveryTypeAndOp : public ::testing::TestWithParam<std::tuple<int, int>> {
 protected:
  void SetUp() override {
    if (!applies(op(), type())) GTEST_SKIP() << "bits are combined of integers only";
  }
  DataType type() const { return static_cast<DataType>(std::get<0>(GetParam())); }
  ReduceOp op() const { return static_cast<ReduceOp>(std::get<1>(GetParam())); }
};

// Reduces in a random order, pairing random partial results (so every tree occurs): each one must be a value of the
// type.
TEST_P(EveryTypeAndOp, AnyOrderOfReductionIsExact) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (const int ranks : {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 64}) {
    const Pattern pattern(type(), op(), ranks);
    for (int trial = 0; trial < 200; ++trial) {
      const std::size_t position = random() % Pattern::kPeriod;
      std::vector<double> partials;
      for (int rank = 0; rank < ranks; ++rank) {
        ASSERT_TRUE(is_value_of(pattern.contribution(rank, position), type())) << ranks << " ranks, rank " << rank;
        partials.push_back(pattern.contribution(rank, position) * pattern.factor(rank));
        ASSERT_TRUE(is_value_of(partials.back(), type())) << ranks << " ranks, rank " << rank;
      }
      while (partials.size() > 1) {
        std::shuffle(partials.begin(), partials.end(), random);
        const double b = partials.back();
        partials.pop_back();
        double& a = partials.back();
        switch (op()) {
          case ReduceOp::prod: a *= b; break;
          case ReduceOp::min: a = std::min(a, b); break;
          case ReduceOp::max: a = std::max(a, b); break;
          case ReduceOp::band:
          case ReduceOp::bor:
          case ReduceOp::bxor: a = combine_bits(a, b, op()); break;
          default: a += b; break;
        }
        ASSERT_TRUE(is_value_of(a, type())) << ranks << " ranks, position " << position << ", partial result " << a;
      }
      const double result = op() == ReduceOp::avg ? partials.front() / ranks : partials.front();
      ASSERT_EQ(result, pattern.reduced(position)) << ranks << " ranks, position " << position;
      ASSERT_TRUE(is_value_of(result, type())) << "the quotient of an average is a value too";
    }
  }
}

TEST_P(EveryTypeAndOp, DataVaries) {
  const Pattern pattern(type(), op(), 4);
  int changes = 0;
  for (std::size_t i = 1; i < 1000; ++i) changes += pattern.reduced(i) != pattern.reduced(i - 1);
  EXPECT_GT(changes, 100);
}

TEST_P(EveryTypeAndOp, OneWrongElementIsCounted) {
  const std::size_t width = size_of(type());
  const std::size_t count = 3 * Pattern::kPeriod + 5;
  Pattern pattern(type(), op(), 3);
  std::vector<unsigned char> data(count * width);
  pattern.fill(data.data(), count, Pattern::kReduced, 12345);
  EXPECT_EQ(pattern.count_wrong(data.data(), count, Pattern::kReduced, 12345), 0u);
  encode(pattern.reduced(0) == 1 ? 2 : 1, type(), data.data());
  encode(101, DataType::u8, data.data() + (count - 1) * width + width - 1);
  const std::size_t wrong = pattern.count_wrong(data.data(), count, Pattern::kReduced, 12345);
  EXPECT_GE(wrong, 1u);
  EXPECT_LE(wrong, 2u);
}

std::string name_of_case(const ::testing::TestParamInfo<std::tuple<int, int>>& info) {
  return std::string(name_of(static_cast<DataType>(std::get<0>(info.param)))) + "_" +
         name_of(static_cast<ReduceOp>(std::get<1>(info.param)));
}
INSTANTIATE_TEST_SUITE_P(All, EveryTypeAndOp,
                         ::testing::Combine(::testing::Range(0, kDataTypes), ::testing::Range(0, kReduceOps)),
                         name_of_case);

TEST(Pattern, BitsAreThoseOfTwosComplement) {
  EXPECT_EQ(combine_bits(12, 10, ReduceOp::band), 8);
  EXPECT_EQ(combine_bits(12, 10, ReduceOp::bor), 14);
  EXPECT_EQ(combine_bits(12, 10, ReduceOp::bxor), 6);
  EXPECT_EQ(combine_bits(-1, 10, ReduceOp::band), 10);
  EXPECT_EQ(combine_bits(-4, 1, ReduceOp::bor), -3);
}

TEST(Pattern, AChunkInAWrongPlaceIsSeen) {
  Pattern pattern(DataType::f32, ReduceOp::sum, 2);
  std::vector<float> data(1 << 16);
  pattern.fill(data.data(), data.size(), 0, 0);
  std::swap_ranges(data.begin(), data.begin() + 4096, data.begin() + 8192);
  EXPECT_GT(pattern.count_wrong(data.data(), data.size(), 0, 0), 7000u);
}

TEST(Pattern, RanksAndIterationsDiffer) {
  Pattern pattern(DataType::i32, ReduceOp::sum, 2);
  std::vector<std::int32_t> data(1000);
  pattern.fill(data.data(), data.size(), 0, 0);
  EXPECT_GT(pattern.count_wrong(data.data(), data.size(), 1, 0), 900u);
  pattern.set_iteration(1);
  EXPECT_GT(pattern.count_wrong(data.data(), data.size(), 0, 0), 900u);
}

TEST(Pattern, ZerosOfEitherSignAreEqual) {
  Pattern pattern(DataType::f32, ReduceOp::sum, 2);
  std::vector<float> data(Pattern::kPeriod);
  pattern.fill(data.data(), data.size(), 0, 0);
  ASSERT_GT(std::count(data.begin(), data.end(), 0.0f), 0);
  for (float& value : data) {
    if (value == 0) value = -0.0f;
  }
  EXPECT_EQ(pattern.count_wrong(data.data(), data.size(), 0, 0), 0u);
}

TEST(Encode, KnownBits) {
  const auto bits = [](double value, DataType type) {
    std::uint16_t element = 0;
    encode(value, type, &element);
    return element;
  };
  EXPECT_EQ(bits(1, DataType::f16), 0x3c00);
  EXPECT_EQ(bits(-2, DataType::f16), 0xc000);
  EXPECT_EQ(bits(1.5, DataType::bf16), 0x3fc0);
  EXPECT_EQ(bits(1, DataType::f8e4m3), 0x38);
  EXPECT_EQ(bits(448, DataType::f8e4m3), 0x7e);
  EXPECT_EQ(bits(-1, DataType::f8e5m2), 0xbc);
  const unsigned char nan = 0x7f;
  EXPECT_TRUE(std::isnan(decode(&nan, DataType::f8e4m3)));
  EXPECT_TRUE(std::isnan(decode(&nan, DataType::f8e5m2)));
}

}  // namespace
}  // namespace tutti::perf::pattern_test
