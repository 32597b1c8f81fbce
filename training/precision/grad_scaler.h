// Loss scaling for f16: the loss is multiplied by a power of two before backward, so that small gradients do not vanish
// (f16 has nothing below 2^-24), and the gradients are divided by it before the optimizer's step. A step whose
// gradients hold an infinity or a NaN is left out and the scale is halved (to 2^-126 at the least); after 2000 good
// steps it is doubled.
//
//   GradScaler scaler({}, {comm});
//   for (...) {
//     optimizer.zero_grad();
//     { Autocast autocast(torch::kFloat16); loss = model->loss(x, y); }
//     scaler.scale(loss).backward();
//     scaler.unscale_(optimizer);                  // only when gradients are looked at before the step (clipping)
//     scaler.step(optimizer);                      // false: left out
//     scaler.update();                             // once, after the steps of all optimizers
//   }
//
// Ranks: give the communicators over which ranks share parameters or must step together (data parallel, tensor
//   parallel, pipeline). Whether something was not finite is all-reduced with max over each in turn, so that over the
//   dimensions of a mesh every rank knows of every other's, and no rank steps alone. A rank may hold no gradient, and
//   only one stage of a pipeline has a loss to scale. unscale_ is collective, and step where it was not called; update
//   is not.
// Optimizers: any torch::optim::Optimizer whose step() needs no closure, each known by its address.
// Types: gradients f32, f64 or bf16. f16 gradients are refused: unscaling would lose what scaling saved. Keep f32
//   parameters under Autocast, or f32 masters of f16 ones (master_weights.h).
// Errors: tutti::Error, invalid_argument: what the state does not allow (unscale_ twice or after step; step twice;
//   nothing scaled yet; update without a step), refused gradients (then on all ranks), options out of range.
// Threads: one at a time.
// Sources: Micikevicius et al., "Mixed Precision Training", ICLR 2018, section 3.2; constants and states are those of
//   torch/amp/grad_scaler.py of PyTorch.
#pragma once

#include <torch/torch.h>

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "tutti/tutti.hpp"

namespace tutti::training {

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;     // > 1
  double backoff_factor = 0.5;  // in (0, 1)
  int growth_interval = 2000;   // clean updates in a row
  bool enabled = true;          // false: step() steps, all else does nothing
};

/// The state that a checkpoint keeps. Take it after update().
struct GradScalerState {
  double scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int growth_interval = 2000;
  int growth_tracker = 0;  // clean updates since the scale last changed
};

class GradScaler {
 public:
  explicit GradScaler(const GradScalerOptions& options = {}, std::vector<Communicator> communicators = {});

  /// loss * scale, of the loss's type. Any shape.
  torch::Tensor scale(const torch::Tensor& loss);
  /// Collective. Divides the gradients of the optimizer's parameters by the scale, in place.
  void unscale_(torch::optim::Optimizer& optimizer);
  /// unscale_ unless that was done, then the optimizer's step unless a gradient was not finite. Returns whether it
  /// stepped.
  bool step(torch::optim::Optimizer& optimizer);
  /// The next scale: by what unscale_ found since the last update, or the given one.
  void update(std::optional<double> new_scale = std::nullopt);

  double get_scale() const { return options_.enabled ? static_cast<double>(scale_) : 1; }
  bool enabled() const { return options_.enabled; }
  GradScalerState state() const;
  void load_state(const GradScalerState& state);

 private:
  enum class Stage { ready, unscaled, stepped };
  struct PerOptimizer {
    Stage stage = Stage::ready;
    bool checked = false;  // some rank had gradients to look at
    bool found_inf = false;
  };
  [[noreturn]] void fail(const char* call, const std::string& what) const;
  void set(const GradScalerState& state);
  void check_scaled(const char* call) const;
  bool unscale_own(torch::optim::Optimizer& optimizer, bool* found_inf) const;

  GradScalerOptions options_;
  std::vector<Communicator> communicators_;
  float scale_ = 0;
  int growth_tracker_ = 0;
  bool scaled_ = false;  // scale() was called, here or on another rank
  std::unordered_map<const torch::optim::Optimizer*, PerOptimizer> optimizers_;  // since the last update
};

}  // namespace tutti::training
