#include "csrc/backend/call.h"

#include <utility>

namespace tutti_torch {

void Call::add(Operation operation, const Elements& elements, const at::Tensor& input, const at::Tensor& output,
               at::ScalarType through) {
  const bool converted = through != at::ScalarType::Undefined;
  const bool in_place = input.is_same(output);
  at::Tensor in = input;
  at::Tensor out = output;
  if (input.defined()) {
    place(input);
    in = converted ? converted_input(input, through) : contiguous_input(input);
    operation.send = in.const_data_ptr();
    held.push_back(in);
  }
  if (output.defined()) {
    place(output);
    out = in_place ? in : converted ? empty_on(output.device(), output.sizes(), through) : contiguous_output(output);
    operation.recv = out.mutable_data_ptr();
    outputs.push_back(output);
    if (!out.is_same(output)) {
      held.push_back(out);
      copies.push_back({output, out});
    }
  }
  operation.count *= elements.per_element;
  operation.type = elements.type;
  operations.push_back(std::move(operation));
}

void Call::add_reduction(tutti::Collective kind, const c10d::ReduceOp& op, const at::Tensor& input,
                         const at::Tensor& output, std::size_t count, int root) {
  const Reduction reduction = reduction_for(input.scalar_type(), op, caller);
  add({.kind = kind, .count = count, .op = reduction.op, .factor = reduction.factor, .root = root}, reduction.elements,
      input, output, reduction.through);
}

void Call::place(const at::Tensor& tensor) {
  expect_served(tensor, caller);
  if (!device) device = tensor.device();
  TUTTI_TORCH_EXPECT(*device == tensor.device(), caller, "one tensor is on ", *device, ", another on ", tensor.device(),
                     "; expected one device");
}

void Call::hold(const FlatInput& flat, const std::vector<at::Tensor>& inputs) {
  for (const at::Tensor& input : inputs) place(input);
  if (flat.copy().defined()) {
    held.push_back(flat.copy());
  } else {
    held.append(inputs.begin(), inputs.end());
  }
}

void Call::hold(FlatOutput& flat, const std::vector<at::Tensor>& written) {
  for (const at::Tensor& output : written) place(output);
  outputs.append(written.begin(), written.end());
  if (flat.copy().defined()) held.push_back(flat.copy());
  for (CopyBack& back : flat.copy_back()) copies.push_back(std::move(back));
}

}  // namespace tutti_torch
