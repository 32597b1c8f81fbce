#include "training/precision/master_weights.h"

#include <fmt/format.h>

#include "training/tensors.h"
#include "tutti/tutti.hpp"

namespace tutti::training {

MasterWeights::MasterWeights(const torch::nn::Module& module) {
  for (const auto& [name, parameter] : parameters_of(module)) {
    if (!parameter.requires_grad()) continue;
    switch (parameter.scalar_type()) {
      case torch::kFloat32:
      case torch::kFloat64: masters_.push_back(parameter); break;
      case torch::kBFloat16:
      case torch::kFloat16:
        masters_.push_back(parameter.detach().to(torch::kFloat32).requires_grad_());
        shorts_.push_back({name, parameter, masters_.back()});
        break;
      default:
        throw Error(Code::invalid_argument,
                    fmt::format("MasterWeights: parameter '{}' is of type {}; it can be f32, f64, f16 or bf16", name,
                                c10::toString(parameter.scalar_type())));
    }
  }
}

void MasterWeights::check(const char* call, const Short& item) const {
  const torch::ScalarType type = item.parameter.scalar_type();
  if ((type == torch::kBFloat16 || type == torch::kFloat16) && item.parameter.sizes() == item.master.sizes() &&
      item.parameter.device() == item.master.device()) {
    return;
  }
  throw Error(
      Code::invalid_argument,
      fmt::format("MasterWeights::{}: parameter '{}' has another type, shape or device than when its master was "
                  "made; make MasterWeights after the module is final",
                  call, item.name));
}

void MasterWeights::take_gradients(bool add) {
  torch::NoGradGuard no_grad;
  for (const Short& item : shorts_) {
    check(add ? "add_gradients" : "widen_gradients", item);
    const torch::Tensor& gradient = item.parameter.grad();
    torch::Tensor& wide = item.master.mutable_grad();
    if (!gradient.defined()) {
      if (!add) wide = torch::Tensor();
    } else if (!wide.defined()) {
      wide = gradient.to(torch::kFloat32);
    } else if (add) {
      wide.add_(gradient);  // in f32: the type of the left side
    } else {
      wide.copy_(gradient);
    }
  }
}

void MasterWeights::widen_gradients() { take_gradients(/*add=*/false); }
void MasterWeights::add_gradients() { take_gradients(/*add=*/true); }

void MasterWeights::narrow_parameters() {
  torch::NoGradGuard no_grad;
  for (const Short& item : shorts_) {
    check("narrow_parameters", item);
    torch::Tensor parameter = item.parameter;
    parameter.copy_(item.master);
  }
}

void MasterWeights::read_parameters() {
  torch::NoGradGuard no_grad;
  for (const Short& item : shorts_) {
    check("read_parameters", item);
    torch::Tensor master = item.master;
    master.copy_(item.parameter);
  }
}

}  // namespace tutti::training
