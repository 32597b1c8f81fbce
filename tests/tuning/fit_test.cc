// The search for the least error.
#include "tuning/fit.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tutti::tuning {
namespace {

TEST(Fit, FindsTheLeastErrorWithinBounds) {
  const std::vector<double> wanted{0.3, 70, 2};
  const auto error_of = [&](const std::vector<double>& values) {
    double error = 0;
    for (std::size_t i = 0; i < values.size(); ++i) error += std::abs(std::log(values[i] / wanted[i]));
    return error;
  };
  const std::vector<double> found = fit({{1, 0.01, 100}, {1, 0.01, 100}, {10, 5, 100}}, error_of);
  // The last steps are of 1 %.
  EXPECT_NEAR(found[0] / wanted[0], 1, 0.02);
  EXPECT_NEAR(found[1] / wanted[1], 1, 0.02);
  EXPECT_NEAR(found[2], 5, 0.1);  // as near as it may come
}

}  // namespace
}  // namespace tutti::tuning
