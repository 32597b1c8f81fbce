#include "training/pipeline/partition.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "tutti/tutti.hpp"

namespace tutti::training {

std::vector<std::size_t> balanced_partition(const std::vector<double>& costs, int parts) {
  const std::size_t layers = costs.size();
  if (parts < 1 || layers < static_cast<std::size_t>(parts)) {
    throw Error(Code::invalid_argument,
                fmt::format("balanced_partition: {} layers in {} parts; expected 1 part at least and a layer for each",
                            layers, parts));
  }
  std::vector<double> sum(layers + 1);
  for (std::size_t i = 0; i < layers; ++i) {
    if (!std::isfinite(costs[i]) || costs[i] < 0) {
      throw Error(Code::invalid_argument,
                  fmt::format("balanced_partition: the cost of layer {} is {}; expected 0 or more", i, costs[i]));
    }
    sum[i + 1] = sum[i] + costs[i];
  }
  // best[k][i]: the largest part when the layers from i on make k parts; cut[k][i]: where the first of them ends.
  const auto count = static_cast<std::size_t>(parts);
  std::vector best(count + 1, std::vector<double>(layers + 1, std::numeric_limits<double>::infinity()));
  std::vector cut(count + 1, std::vector<std::size_t>(layers + 1));
  best[0][layers] = 0;
  for (std::size_t k = 1; k <= count; ++k) {
    for (std::size_t i = 0; i + k <= layers; ++i) {
      for (std::size_t end = i + 1; end + k - 1 <= layers; ++end) {
        const double largest = std::max(sum[end] - sum[i], best[k - 1][end]);
        if (largest < best[k][i]) {
          best[k][i] = largest;
          cut[k][i] = end;
        }
      }
    }
  }
  std::vector<std::size_t> cuts{0};
  for (std::size_t k = count; k > 0; --k) cuts.push_back(cut[k][cuts.back()]);
  return cuts;
}

std::vector<LayerCost> measure_layers(const std::vector<Layer>& layers, const torch::Tensor& input, int repeats) {
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
  };
  if (repeats < 1) {
    throw Error(Code::invalid_argument, fmt::format("measure_layers: {} repeats; expected at least 1", repeats));
  }
  torch::AutoGradMode with_gradients(true);
  const double unknown = std::numeric_limits<double>::infinity();
  std::vector<LayerCost> costs(layers.size(), {unknown, unknown});
  for (int repeat = 0; repeat <= repeats; ++repeat) {
    torch::Tensor x = input;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      torch::Tensor in = x.detach();
      if (i > 0 && in.is_floating_point()) in.requires_grad_(true);
      const auto begin = Clock::now();
      const torch::Tensor out = layers[i](in);
      const auto middle = Clock::now();
      if (out.requires_grad()) out.backward(torch::ones_like(out));
      const auto end = Clock::now();
      x = out;
      if (repeat == 0) continue;
      costs[i].forward = std::min(costs[i].forward, seconds(begin, middle));
      costs[i].backward = std::min(costs[i].backward, seconds(middle, end));
    }
  }
  return costs;
}

std::vector<double> totals(const std::vector<LayerCost>& costs) {
  std::vector<double> result;
  for (const LayerCost& cost : costs) result.push_back(cost.forward + cost.backward);
  return result;
}

}  // namespace tutti::training
