#include "tuning/fit.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace tutti::tuning {

namespace {

constexpr double kFirstRatio = 2.0;
constexpr double kLastRatio = 1.01;
constexpr int kMostSweeps = 60;

}  // namespace

Fit fit(const std::vector<Parameter>& parameters, const ErrorOf& error_of, const IsSpent& is_spent) {
  std::vector<double> values;
  for (const Parameter& parameter : parameters) values.push_back(parameter.value);
  double least = error_of(values);
  double ratio = kFirstRatio;
  for (int sweep = 0; sweep < kMostSweeps && ratio > kLastRatio; ++sweep) {
    const double before = least;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      for (const double factor : {ratio, 1 / ratio}) {
        if (is_spent && is_spent()) return {values, /*in_full=*/false};
        const double kept = values[i];
        values[i] = std::clamp(kept * factor, parameters[i].least, parameters[i].most);
        const double error = error_of(values);
        if (error < least) {
          least = error;
          break;
        }
        values[i] = kept;
      }
    }
    if (before - least < 1e-3 * before) ratio = std::sqrt(ratio);
  }
  return {values, /*in_full=*/true};
}

}  // namespace tutti::tuning
