// The values of a few positive parameters with which an error is least: a search that tries each of them a little
// larger and a little smaller, in ratios, and less and less of it.
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
/// Whether what was allowed for something, of time or of anything else, has been spent. Empty: there is no limit.
using IsSpent = std::function<bool()>;

struct Fit {
  std::vector<double> values;  // the best that were found, in the order of the parameters
  bool in_full = true;         // the search has come to its end
};

/// Asks for the error some hundred times for each parameter; before each time but the first it asks whether that may
/// still be, and where not ends with what it has. But for that the same errors lead to the same values.
Fit fit(const std::vector<Parameter>& parameters, const ErrorOf& error_of, const IsSpent& is_spent = {});

}  // namespace tutti::tuning
