// reduce_scatter in all its forms.
#include <cstddef>
#include <utility>
#include <vector>

#include "csrc/backend/backend.h"
#include "csrc/tensors/arguments.h"

namespace tutti_torch {

using tutti::Collective;

namespace {

void add_reduce_scatter_single(Call& call, const c10d::ReduceOp& op, const at::Tensor& output, const at::Tensor& input,
                               int size) {
  expect_blocks(input, output, size, "input", call.caller);
  call.add_reduction(Collective::reduce_scatter, op, input, output, elements_in(output));
}

}  // namespace

TuttiBackend::WorkPtr TuttiBackend::reduce_scatter(TensorList& outputs, std::vector<TensorList>& inputs,
                                                   const c10d::ReduceScatterOptions& options) {
  Call call = call_of(c10d::OpType::REDUCE_SCATTER, "tutti:reduce_scatter");
  const at::Tensor& output = only(outputs, call.caller);
  const TensorList& list = only(inputs, call.caller);
  expect_one_per_rank(list, size_, output.scalar_type(), "input", call.caller);
  const at::Tensor& own = list[static_cast<std::size_t>(rank_)];
  TUTTI_TORCH_EXPECT(own.numel() == output.numel(), call.caller, "the output has ", output.numel(),
                     " elements, this rank's input has ", own.numel(), "; expected as many");
  const Reduction reduction = reduction_for(output.scalar_type(), options.reduceOp, call.caller);
  if (!all_have(list, output.numel()) || reduction.through != at::ScalarType::Undefined) {
    // Sizes differ, and every rank knows all of them: each rank's part is a reduction of its own.
    for (int root = 0; root < size_; ++root) {
      const at::Tensor& input = list[static_cast<std::size_t>(root)];
      call.add_reduction(Collective::reduce, options.reduceOp, input, root == rank_ ? output : at::Tensor(),
                         elements_in(input), root);
    }
    return launch(std::move(call), options);
  }
  const FlatInput flat(list);
  call.hold(flat, list);
  call.add({.kind = Collective::reduce_scatter,
            .send = flat.data(),
            .count = elements_in(output),
            .op = reduction.op,
            .factor = reduction.factor},
           reduction.elements, {}, output);
  return launch(std::move(call), options);
}

TuttiBackend::WorkPtr TuttiBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                         const c10d::ReduceScatterOptions& options) {
  Call call = call_of(c10d::OpType::_REDUCE_SCATTER_BASE, "tutti:reduce_scatter_tensor");
  add_reduce_scatter_single(call, options.reduceOp, output, input, size_);
  return launch(std::move(call), options);
}

TuttiBackend::WorkPtr TuttiBackend::reduce_scatter_tensor_coalesced(TensorList& outputs, TensorList& inputs,
                                                                    const c10d::ReduceScatterOptions& options) {
  Call call = call_of(c10d::OpType::COALESCED, "tutti:reduce_scatter_tensor_coalesced");
  expect_as_many(outputs, inputs, call.caller);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    add_reduce_scatter_single(call, options.reduceOp, outputs[i], inputs[i], size_);
  }
  return launch(std::move(call), options);
}

}  // namespace tutti_torch
