// Sees every operator that a thread calls, before it runs. C++ modules have no hooks around forward; this serves in
// their place, and sees backward and recomputation, too.
//
// How: a kernel for all operators behind LibTorch's dispatch key for deferred initialisation, which is there for
//   libraries like this one and unused in LibTorch itself; the key is switched on for the thread. Price: arguments are
//   boxed, 0.1 to 0.3 us (add_ of one element, 0.4 us without) for each operator that is called from outside of another
//   one.
// Threads: a watch acts on the thread that made it, and must be destroyed there. The engine runs the backward passes of
//   CPU tensors on the thread that asks for them. For those of other devices it has threads of its own, which get the
//   switch from the thread they work for: there, the operator is shown to all watches of the process.
// Errors: what a watch throws, the operator's caller gets.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/torch.h>

#include <cstddef>
#include <functional>

namespace tutti::training {

class OperatorWatch {
 public:
  /// `before` may call operators itself; those are not shown to any watch.
  using Before = std::function<void(const c10::OperatorHandle& op, torch::jit::Stack& arguments)>;
  explicit OperatorWatch(Before before);
  ~OperatorWatch();
  OperatorWatch(const OperatorWatch&) = delete;
  OperatorWatch& operator=(const OperatorWatch&) = delete;

 private:
  friend struct OperatorWatchKernel;
  Before before_;
};

/// Calls `visit(tensor, i)` for each tensor among the last `count` arguments, those in lists too; i counts arguments.
template <class Visit>
void for_each_tensor(const torch::jit::Stack& arguments, std::size_t count, Visit&& visit) {
  for (std::size_t i = 0; i < count; ++i) {
    const c10::IValue& value = arguments[arguments.size() - count + i];
    if (value.isTensor()) {
      visit(value.toTensor(), i);
    } else if (value.isTensorList()) {
      for (const torch::Tensor& tensor : value.toTensorVector()) visit(tensor, i);
    } else if (value.isList()) {
      for (const c10::IValue& element : value.toListRef()) {
        if (element.isTensor()) visit(element.toTensor(), i);
      }
    }
  }
}

}  // namespace tutti::training
