// Takes the hooks off tensors for as long as it lives: for a backward pass inside another one, or in pieces, so that a
// tensor's hooks run once and not once for each piece.
#pragma once

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include <memory>
#include <utility>
#include <vector>

namespace tutti::training {

class WithoutGradientHooks {
 public:
  explicit WithoutGradientHooks(const std::vector<torch::Tensor>& tensors) {
    for (const torch::Tensor& tensor : tensors) {
      items_.emplace_back(tensor, std::exchange(torch::autograd::impl::hooks(tensor), {}));
    }
  }
  ~WithoutGradientHooks() {
    for (auto& [tensor, hooks] : items_) torch::autograd::impl::hooks(tensor) = std::move(hooks);
  }
  WithoutGradientHooks(const WithoutGradientHooks&) = delete;
  WithoutGradientHooks& operator=(const WithoutGradientHooks&) = delete;

 private:
  std::vector<std::pair<torch::Tensor, std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>>> items_;
};

}  // namespace tutti::training
