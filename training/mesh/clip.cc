#include "training/mesh/clip.h"

#include <fmt/format.h>

#include <cmath>

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
  double squares = 0;
  for (const torch::Tensor& parameter : parameters.own) {
    if (!parameter.grad().defined() || parameter.grad().numel() == 0) continue;
    const double norm = at::linalg_vector_norm(parameter.grad(), 2, {}, false, torch::kFloat64).item<double>();
    squares += norm * norm;
  }
  CallOptions in_rank_order;
  in_rank_order.deterministic = true;
  for (Communicator comm : pieces) {
    if (comm.size() > 1) comm.all_reduce(&squares, &squares, 1, DataType::f64, ReduceOp::sum, in_rank_order);
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
