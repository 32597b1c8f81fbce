// The cut of a model into stages, against trying all cuts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <random>
#include <vector>

#include "training/pipeline/partition.h"
#include "tutti/tutti.hpp"

namespace tutti::training::pipeline_partition_test {
namespace {

using Cuts = std::vector<std::size_t>;

double largest_part(const std::vector<double>& costs, const Cuts& cuts) {
  double largest = 0;
  for (std::size_t s = 0; s + 1 < cuts.size(); ++s) {
    double sum = 0;
    for (std::size_t i = cuts[s]; i < cuts[s + 1]; ++i) sum += costs[i];
    largest = std::max(largest, sum);
  }
  return largest;
}

double best_of_all(const std::vector<double>& costs, Cuts cuts, int parts) {
  if (parts == 1) {
    cuts.push_back(costs.size());
    return largest_part(costs, cuts);
  }
  double best = std::numeric_limits<double>::infinity();
  for (std::size_t end = cuts.back() + 1; end + static_cast<std::size_t>(parts) - 1 <= costs.size(); ++end) {
    Cuts longer = cuts;
    longer.push_back(end);
    best = std::min(best, best_of_all(costs, longer, parts - 1));
  }
  return best;
}

TEST(Partition, OfEqualLayersIsEven) {
  EXPECT_EQ(balanced_partition(std::vector<double>(8, 1.0), 4), (Cuts{0, 2, 4, 6, 8}));
  EXPECT_EQ(balanced_partition({1, 1, 1}, 3), (Cuts{0, 1, 2, 3}));
  EXPECT_EQ(balanced_partition({5}, 1), (Cuts{0, 1}));
}

TEST(Partition, TakesTheEarliestOfEqualCuts) {
  // 8 is the best in each case; 1 + 8 would be more.
  EXPECT_EQ(balanced_partition({1, 1, 1, 1, 8, 1, 1, 1}, 3), (Cuts{0, 4, 5, 8}));
  EXPECT_EQ(balanced_partition({1, 1, 1, 1, 8}, 3), (Cuts{0, 1, 4, 5}));
}

TEST(Partition, IsTheBestOfAll) {
  const auto seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 500; ++round) {
    const std::size_t layers = 1 + random() % 9;
    const int parts = 1 + static_cast<int>(random() % layers);
    std::vector<double> costs;
    for (std::size_t i = 0; i < layers; ++i) costs.push_back(static_cast<double>(random() % 20));  // sums are exact
    const Cuts cuts = balanced_partition(costs, parts);
    ASSERT_EQ(cuts.size(), static_cast<std::size_t>(parts) + 1);
    EXPECT_EQ(cuts.front(), 0u);
    EXPECT_EQ(cuts.back(), layers);
    for (std::size_t s = 0; s + 1 < cuts.size(); ++s) EXPECT_LT(cuts[s], cuts[s + 1]);
    EXPECT_EQ(largest_part(costs, cuts), best_of_all(costs, {0}, parts));
  }
}

TEST(Partition, RefusesWhatHasNoCut) {
  EXPECT_THROW(balanced_partition({1, 2}, 3), Error);
  EXPECT_THROW(balanced_partition({1, 2}, 0), Error);
  EXPECT_THROW(balanced_partition({1, -1}, 1), Error);
  EXPECT_THROW(balanced_partition({1, std::numeric_limits<double>::quiet_NaN()}, 1), Error);
}

TEST(Measure, FindsTheExpensiveLayer) {
  torch::set_num_threads(1);
  torch::manual_seed(1);
  torch::nn::Linear small(64, 64), large(64, 64);
  const auto apply = [](torch::nn::Linear layer, int times) {
    return [=](const torch::Tensor& x) mutable {
      torch::Tensor y = x;
      for (int i = 0; i < times; ++i) y = layer->forward(y);
      return y;
    };
  };
  const std::vector<LayerCost> costs = measure_layers({apply(small, 1), apply(large, 50)}, torch::randn({32, 64}));
  ASSERT_EQ(costs.size(), 2u);
  EXPECT_GT(costs[0].forward, 0);
  EXPECT_GT(costs[0].backward, 0);
  // 50 times the arithmetic; a factor of 5 leaves room for a noisy machine.
  EXPECT_GT(costs[1].forward, 5 * costs[0].forward);
  EXPECT_GT(costs[1].backward, 5 * costs[0].backward);
  EXPECT_EQ(totals(costs)[0], costs[0].forward + costs[0].backward);
  EXPECT_THROW(measure_layers({}, torch::randn({1}), 0), Error);
}

}  // namespace
}  // namespace tutti::training::pipeline_partition_test
