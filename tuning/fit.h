// Finds the values of a few positive parameters with which an error is least. The search tries each of them a little
// larger and a little smaller, in ratios, and in smaller and smaller steps.
#pragma once

#include <functional>
#include <vector>

namespace tutti::tuning {

struct Parameter {
  double value = 1;  // where the search begins; REQUIRES: least <= value <= most
  double least = 0;  // above 0
  double most = 0;
};

using ErrorOf = std::function<double(const std::vector<double>& values)>;
/// Whether the budget (time, or anything else) is used up. Empty: there is no limit.
using IsSpent = std::function<bool()>;

struct Fit {
  std::vector<double> values;  // the best that were found, in the order of the parameters
  bool in_full = true;         // the search has come to its end
};

/// Evaluates the error some hundred times for each parameter. Checks `is_spent` before every evaluation except the
/// first; when it is true, returns the best values so far. Otherwise deterministic.
Fit fit(const std::vector<Parameter>& parameters, const ErrorOf& error_of, const IsSpent& is_spent = {});

}  // namespace tutti::tuning
