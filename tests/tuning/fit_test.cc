// The search for the least error.
#include "tuning/fit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace tutti::tuning::fit_test {
namespace {

TEST(Fit, FindsTheLeastErrorWithinBounds) {
  const std::vector<double> wanted{0.3, 70, 2};
  const auto error_of = [&](const std::vector<double>& values) {
    double error = 0;
    for (std::size_t i = 0; i < values.size(); ++i) error += std::abs(std::log(values[i] / wanted[i]));
    return error;
  };
  const Fit all = fit({{1, 0.01, 100}, {1, 0.01, 100}, {10, 5, 100}}, error_of);
  EXPECT_TRUE(all.in_full);
  const std::vector<double>& found = all.values;
  // The last steps are of 1 %.
  EXPECT_NEAR(found[0] / wanted[0], 1, 0.02);
  EXPECT_NEAR(found[1] / wanted[1], 1, 0.02);
  EXPECT_NEAR(found[2], 5, 0.1);  // as near as it may come
}

TEST(Fit, EndsWithTheBestSoFarWhenWhatIsAllowedIsSpent) {
  const std::vector<Parameter> parameters{{1, 0.01, 100}, {1, 0.01, 100}};
  int asked = 0;
  double least = 1e9;
  const auto error_of = [&](const std::vector<double>& values) {
    ++asked;
    const double error = std::abs(std::log(values[0] / 70)) + std::abs(std::log(values[1] / 0.03));
    least = std::min(least, error);
    return error;
  };
  for (const int most : {1, 2, 3, 10, 25}) {
    asked = 0;
    least = 1e9;
    const Fit found = fit(parameters, error_of, [&] { return asked == most; });
    EXPECT_FALSE(found.in_full);
    EXPECT_EQ(asked, most);
    EXPECT_EQ(error_of(found.values), least);
  }
}

}  // namespace
}  // namespace tutti::tuning::fit_test
