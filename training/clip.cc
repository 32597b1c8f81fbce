#include "training/clip.h"

#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <numeric>
#include <span>

namespace tutti::training {
namespace {

constexpr double kTiny = 1e-6;  // keeps a gradient of zero from being divided by

}  // namespace

double clip_grad_norm(const ClippedParameters& parameters, const std::vector<Communicator>& pieces, double largest) {
  const torch::NoGradGuard no_grad;
  if (!(largest >= 0)) {
    throw Error(Code::invalid_argument,
                fmt::format("clip_grad_norm: largest is {}; expected 0 (only measure) or more", largest));
  }
  std::vector<torch::Tensor> norms;
  for (const torch::Tensor& parameter : parameters.own) {
    if (!parameter.grad().defined() || parameter.grad().numel() == 0) continue;
    norms.push_back(at::linalg_vector_norm(parameter.grad(), 2, {}, false, torch::kFloat64));
  }
  double squares = 0;
  if (!norms.empty()) {
    const torch::Tensor here = torch::stack(norms).cpu();  // a device is waited for once
    for (const double norm : std::span(here.data_ptr<double>(), norms.size())) squares += norm * norm;
  }
  // Gathered, then added here: every backend can, and every rank gets the same bits.
  for (Communicator comm : pieces) {
    if (comm.size() == 1) continue;
    std::vector<double> of_ranks(static_cast<std::size_t>(comm.size()));
    comm.all_gather(&squares, of_ranks.data(), 1, DataType::f64);
    squares = std::accumulate(of_ranks.begin(), of_ranks.end(), 0.0);
  }
  const double norm = std::sqrt(squares);
  const double factor = largest / (norm + kTiny);
  if (largest == 0 || !std::isfinite(norm) || factor >= 1) return norm;
  for (const auto* list : {&parameters.own, &parameters.copies}) {
    for (const torch::Tensor& parameter : *list) {
      if (parameter.grad().defined()) parameter.grad().mul_(factor);
    }
  }
  return norm;
}

}  // namespace tutti::training
