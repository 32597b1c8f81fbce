// Autocast for C++: while a guard lives, matrix products and convolutions on its kind of device run in bf16 or f16 and
// sums, losses and norms in f32; the lists of operations are LibTorch's. Parameters stay f32 and get f32 gradients.
//
//   {
//     Autocast autocast(torch::kBFloat16);                 // forward and loss only; not backward
//     loss = model->loss(x, y);
//     {
//       Autocast off(torch::kBFloat16, torch::kCPU, false);  // a region in full precision
//       loss = loss + penalty(model);
//     }
//   }
//   loss.backward();                                       // each operation in the type its forward had
//
// f16 needs loss scaling (grad_scaler.h); bf16 has the exponents of f32 and needs none.
// Nesting: guards are destroyed in the reverse order of making, as scopes do; each puts back what it found. A guard for
//   one kind of device leaves the others alone.
// Threads: a guard acts on the thread that made it. Casted weights are cached until the outermost guard of any thread
//   ends: with ranks as threads of one process a weight that is used twice may be cast once or twice, which rounds the
//   sum of its gradients otherwise. Where bits matter then, give cache = false.
// Limits: LibTorch of 2025 and before (pytorch pull request 165068) also cached casts made without gradients; there, a
//   pass under NoGradGuard needs a guard of its own, outside of a region that trains.
// Errors: invalid_argument for any type but bf16 and f16, and a device that has no autocast.
// Source: torch/amp/autocast_mode.py of PyTorch, whose guard this is.
#pragma once

#include <torch/torch.h>

namespace tutti::training {

class Autocast {
 public:
  explicit Autocast(torch::ScalarType type, torch::DeviceType device = torch::kCPU, bool enabled = true,
                    bool cache = true);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  torch::DeviceType device_;
  bool enabled_before_, cache_before_;
  torch::ScalarType type_before_;
  bool types_mix_;  // this guard and the one around it cast to different types
};

}  // namespace tutti::training
