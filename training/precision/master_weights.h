// f32 copies of the parameters of a module that is kept in bf16 or f16. The optimizer steps on the copies, so that
// updates smaller than half a unit in the last place of the short type add up and are not lost (1 + 2^-12 is 1 in f16).
//
//   model->to(torch::kBFloat16);
//   MasterWeights masters(*model);
//   torch::optim::AdamW optimizer(masters.parameters());
//   for (...) {
//     model->zero_grad();
//     model->loss(x, y).backward();
//     masters.widen_gradients();                  // f32 gradients, on the masters
//     torch::nn::utils::clip_grad_norm_(masters.parameters(), 1.0);
//     optimizer.step();                           // or GradScaler::step; when that leaves a step out, nothing changes
//     masters.narrow_parameters();
//   }
//
// Which: the trained parameters, in the module's order, one shared by two names once. One that is f32 or f64 already is
//   its own master: its gradient is not copied.
// Ranks: knows of none. Gradients are reduced before they are widened (ddp.h adds bf16 and f16 in f32 and rounds once),
//   and equal parameters with equal gradients stay equal.
// Rounding: to nearest, ties to even, each way by LibTorch. Memory: 8 more bytes per short parameter (copy, gradient).
// Lifetime: keeps the parameters alive. Move the module to its final type and device, and freeze, first.
// Errors: invalid_argument names a trained parameter that is of no real floating type, or whose type, shape or device
//   was changed later.
// Threads: one at a time.
// Source: Micikevicius et al., "Mixed Precision Training", ICLR 2018, section 3.1.
#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

namespace tutti::training {

class MasterWeights {
 public:
  explicit MasterWeights(const torch::nn::Module& module);

  /// Returns the masters, for the optimizer and for clipping.
  const std::vector<torch::Tensor>& parameters() const { return masters_; }

  /// The masters' gradients become the module's; none where the module has none.
  void widen_gradients();
  /// Adds them, for micro-batches that are to be summed in f32: call this after each backward, then set the module's
  /// gradients to zero or none. Short parameters only; the others' gradients add up by themselves if they are left.
  void add_gradients();
  /// The module's parameters become the masters, rounded.
  void narrow_parameters();
  /// The masters become the module's parameters: after these were loaded or changed by hand.
  void read_parameters();

 private:
  struct Short {
    std::string name;
    torch::Tensor parameter, master;
  };
  void take_gradients(bool add);
  void check(const char* call, const Short& item) const;

  std::vector<torch::Tensor> masters_;
  std::vector<Short> shorts_;
};

}  // namespace tutti::training
