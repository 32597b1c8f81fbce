// --precision of the trainers.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "training/precision/autocast.h"
#include "training/precision/grad_scaler.h"
#include "tutti/tutti.hpp"

namespace tutti::training {

enum class Precision : std::uint8_t {
  fp32,
  bf16,  // autocast: parameters, gradients and optimiser stay f32
  fp16,  // the same with a scaled loss
};

/// Returns what a word of --precision means. REQUIRES: "fp32", "bf16" or "fp16".
Precision precision_of(const std::string& word);

/// Switches autocast on, as `precision` wants it, for as long as this object lives.
class PrecisionGuard {
 public:
  PrecisionGuard(Precision precision, torch::Device device);

 private:
  std::optional<Autocast> autocast_;
};

/// Returns a scaler of losses for fp16, and one that changes nothing for the others.
GradScaler make_scaler(Precision precision, std::vector<Communicator> communicators);

}  // namespace tutti::training
