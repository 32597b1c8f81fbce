#include "training/trainers/precision.h"

#include <utility>

namespace tutti::training {

Precision precision_of(const std::string& word) {
  return word == "fp32" ? Precision::fp32 : word == "bf16" ? Precision::bf16 : Precision::fp16;
}

PrecisionGuard::PrecisionGuard(Precision precision, torch::Device device) {
  if (precision != Precision::fp32) {
    autocast_.emplace(precision == Precision::bf16 ? torch::kBFloat16 : torch::kFloat16, device.type());
  }
}

GradScaler make_scaler(Precision precision, std::vector<Communicator> communicators) {
  GradScalerOptions scaling;
  scaling.enabled = precision == Precision::fp16;
  return GradScaler(scaling, std::move(communicators));
}

}  // namespace tutti::training
