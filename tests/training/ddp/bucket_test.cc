#include "training/ddp/bucket.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace tutti::training::bucket_test {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

std::vector<std::size_t> parameters_of(const Bucket& bucket) {
  std::vector<std::size_t> result;
  for (const BucketSlice& slice : bucket.slices) result.push_back(slice.parameter);
  return result;
}

TEST(Bucket, TakesParametersInReverseOrderAndClosesTheFirstOneEarly) {
  // 512 KiB each: two reach the first cap of 1 MiB, four the later cap of 2 MiB.
  const std::vector<BucketParameter> parameters(8, {kMiB / 8, DataType::f32});
  const std::vector<Bucket> buckets = plan_buckets(parameters, kMiB, 2 * kMiB);
  ASSERT_EQ(buckets.size(), 3u);
  EXPECT_EQ(parameters_of(buckets[0]), (std::vector<std::size_t>{7, 6}));
  EXPECT_EQ(parameters_of(buckets[1]), (std::vector<std::size_t>{5, 4, 3, 2}));
  EXPECT_EQ(parameters_of(buckets[2]), (std::vector<std::size_t>{1, 0}));
}

TEST(Bucket, ALargeParameterClosesItsBucket) {
  const std::vector<BucketParameter> parameters{{10, DataType::f32}, {1000, DataType::f32}, {10, DataType::f32}};
  const std::vector<Bucket> buckets = plan_buckets(parameters, 100, 100);
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_EQ(parameters_of(buckets[0]), (std::vector<std::size_t>{2, 1}));
  EXPECT_EQ(buckets[0].elements, 1010u);
  EXPECT_EQ(buckets[0].slices[1].offset, 10u);
}

TEST(Bucket, NoParametersMakeNoBuckets) {
  EXPECT_TRUE(plan_buckets({}, kMiB, kMiB).empty());
  const std::vector<BucketParameter> empty{{0, DataType::f32}};
  EXPECT_TRUE(plan_buckets(empty, kMiB, kMiB).empty());
}

TEST(Bucket, EveryElementIsInExactlyOneBucketOfItsTypeAndOnlyCapsCloseBuckets) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const DataType types[] = {DataType::f32, DataType::f64, DataType::bf16, DataType::f16};
  for (int round = 0; round < 200; ++round) {
    std::vector<BucketParameter> parameters(random() % 40);
    for (BucketParameter& parameter : parameters) parameter = {random() % 5000, types[random() % 4]};
    const std::size_t first_cap = 1 + random() % 20000, cap = 1 + random() % 60000;
    const std::vector<Bucket> buckets = plan_buckets(parameters, first_cap, cap);

    std::vector<int> seen(parameters.size());
    int open_types = 0;
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      std::size_t offset = 0;
      for (const BucketSlice& slice : buckets[b].slices) {
        ++seen[slice.parameter];
        EXPECT_EQ(slice.offset, offset);
        EXPECT_EQ(slice.elements, parameters[slice.parameter].elements);
        EXPECT_EQ(parameters[slice.parameter].type, buckets[b].type);
        offset += slice.elements;
      }
      EXPECT_EQ(buckets[b].elements, offset);
      for (std::size_t i = 1; i < buckets[b].slices.size(); ++i) {
        EXPECT_LT(buckets[b].slices[i].parameter, buckets[b].slices[i - 1].parameter);
      }
      const std::size_t without_last =
          buckets[b].bytes() - buckets[b].slices.back().elements * size_of(buckets[b].type);
      EXPECT_LT(without_last, std::max(first_cap, cap)) << "it should have been closed earlier";
      if (buckets[b].bytes() < (b == 0 ? first_cap : cap)) ++open_types;
    }
    EXPECT_LE(open_types, 4) << "at most one unfilled bucket per type";
    for (std::size_t i = 0; i < parameters.size(); ++i) EXPECT_EQ(seen[i], parameters[i].elements > 0 ? 1 : 0);
  }
}

}  // namespace
}  // namespace tutti::training::bucket_test
