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

/// The best values found, in the order of the parameters. Asks for the error some hundred times for each parameter.
std::vector<double> fit(const std::vector<Parameter>& parameters, const ErrorOf& error_of);

}  // namespace tutti::tuning
