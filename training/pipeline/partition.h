// Where to cut a model into pipeline stages: contiguous parts of a list of layers with the smallest largest cost.
//
//   std::vector<double> costs = totals(measure_layers(layers, example));
//   std::vector<std::size_t> cuts = balanced_partition(costs, 4);   // stage s: layers [cuts[s], cuts[s + 1])
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <functional>
#include <vector>

namespace tutti::training {

/// parts + 1 places, from 0 to costs.size(), rising: the cut whose most expensive part is cheapest; exact, by dynamic
/// programming over (layers, parts) in O(layers^2 parts). Among equals, the one whose first cut comes earliest, then
/// the second, and so on. Each part has a layer at least. Errors: invalid_argument (no part, fewer layers than parts, a
/// cost that is negative or not finite).
std::vector<std::size_t> balanced_partition(const std::vector<double>& costs, int parts);

using Layer = std::function<torch::Tensor(const torch::Tensor&)>;

struct LayerCost {  // seconds
  double forward = 0;
  double backward = 0;
};

/// Runs the layers one after the other on `input`, `repeats` times after one that does not count, and gives each
/// layer's shortest time. Backward starts from a gradient of ones and stops at the layer's own input. Parameters'
/// gradients are changed: zero them afterwards. Not collective; measure on one rank and broadcast the cut, since clocks
/// differ.
std::vector<LayerCost> measure_layers(const std::vector<Layer>& layers, const torch::Tensor& input, int repeats = 5);

/// Forward plus backward of each layer.
std::vector<double> totals(const std::vector<LayerCost>& costs);

}  // namespace tutti::training
