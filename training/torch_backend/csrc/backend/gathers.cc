// all_gather in all its forms, gather, scatter.
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "csrc/backend/backend.h"
#include "csrc/tensors/arguments.h"

namespace tutti_torch {

using tutti::Collective;

namespace {

/// Returns splits that send the same `count` elements to every rank, and receive from each what its output holds.
std::shared_ptr<const Splits> to_all(std::size_t count, at::TensorList outputs, std::size_t per_element) {
  auto splits = std::make_shared<Splits>();
  std::size_t offset = 0;
  for (const at::Tensor& output : outputs) {
    splits->send_counts.push_back(count);
    splits->send_offsets.push_back(0);
    splits->recv_counts.push_back(elements_in(output) * per_element);
    splits->recv_offsets.push_back(offset);
    offset += splits->recv_counts.back();
  }
  return splits;
}

void add_all_gather(Call& call, const std::vector<at::Tensor>& outputs, const at::Tensor& input, int size) {
  expect_one_per_rank(outputs, size, input.scalar_type(), "output", call.caller);
  const at::Tensor& own = outputs[static_cast<std::size_t>(call.caller.rank)];
  TUTTI_TORCH_EXPECT(own.numel() == input.numel(), call.caller, "the input has ", input.numel(),
                     " elements, this rank's output has ", own.numel(), "; expected as many");
  const Elements elements = elements_for_moving(input.scalar_type());
  if (!all_have(outputs, input.numel())) {
    // Sizes differ, and every rank must know all of them. The call compares them, also where one of them is 0.
    FlatOutput flat(outputs);
    call.add({.kind = Collective::all_to_allv,
              .recv = flat.data(),
              .splits = to_all(elements_in(input) * elements.per_element, outputs, elements.per_element)},
             elements, input, {});
    call.hold(flat, outputs);
    return;
  }
  FlatOutput flat(outputs);
  call.add({.kind = Collective::all_gather, .recv = flat.data(), .count = elements_in(input)}, elements, input, {});
  call.hold(flat, outputs);
}

void add_all_gather_single(Call& call, const at::Tensor& output, const at::Tensor& input, int size) {
  expect_blocks(output, input, size, "output", call.caller);
  call.add({.kind = Collective::all_gather, .count = elements_in(input)}, elements_for_moving(input.scalar_type()),
           input, output);
}

}  // namespace

TuttiBackend::WorkPtr TuttiBackend::allgather(std::vector<TensorList>& outputs, TensorList& inputs,
                                              const c10d::AllgatherOptions& options) {
  Call call = call_of(c10d::OpType::ALLGATHER, "tutti:all_gather");
  add_all_gather(call, only(outputs, call.caller), only(inputs, call.caller), size_);
  return launch(std::move(call), options);
}

TuttiBackend::WorkPtr TuttiBackend::allgather_coalesced(std::vector<TensorList>& outputs, TensorList& inputs,
                                                        const c10d::AllgatherOptions& options) {
  Call call = call_of(c10d::OpType::ALLGATHER_COALESCED, "tutti:all_gather_coalesced");
  TUTTI_TORCH_EXPECT(outputs.size() == static_cast<std::size_t>(size_), call.caller, "the output is ", outputs.size(),
                     " lists; expected ", size_, ", one per rank");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    TensorList of_input;
    for (const TensorList& of_rank : outputs) {
      TUTTI_TORCH_EXPECT(of_rank.size() == inputs.size(), call.caller, "one rank's output list has ", of_rank.size(),
                         " tensors; expected ", inputs.size(), ", one per input");
      of_input.push_back(of_rank[i]);
    }
    add_all_gather(call, of_input, inputs[i], size_);
  }
  return launch(std::move(call), options);
}

TuttiBackend::WorkPtr TuttiBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                    const c10d::AllgatherOptions& options) {
  Call call = call_of(c10d::OpType::_ALLGATHER_BASE, "tutti:all_gather_into_tensor");
  add_all_gather_single(call, output, input, size_);
  return launch(std::move(call), options);
}

TuttiBackend::WorkPtr TuttiBackend::allgather_into_tensor_coalesced(TensorList& outputs, TensorList& inputs,
                                                                    const c10d::AllgatherOptions& options) {
  Call call = call_of(c10d::OpType::COALESCED, "tutti:all_gather_into_tensor_coalesced");
  expect_as_many(outputs, inputs, call.caller);
  for (std::size_t i = 0; i < inputs.size(); ++i) add_all_gather_single(call, outputs[i], inputs[i], size_);
  return launch(std::move(call), options);
}

TuttiBackend::WorkPtr TuttiBackend::gather(std::vector<TensorList>& outputs, TensorList& inputs,
                                           const c10d::GatherOptions& options) {
  Call call = call_of(c10d::OpType::GATHER, "tutti:gather");
  const at::Tensor& input = only(inputs, call.caller);
  const int root = root_of(options.rootRank, size_, call.caller);
  const Elements elements = elements_for_moving(input.scalar_type());
  Operation operation{.kind = Collective::gather, .count = elements_in(input), .root = root};
  if (rank_ != root) {
    TUTTI_TORCH_EXPECT(outputs.empty(), call.caller, "it was given an output; expected none, as the root is ", root);
    call.add(std::move(operation), elements, input, {});
    return launch(std::move(call), options);
  }
  const TensorList& list = only(outputs, call.caller);
  expect_one_per_rank(list, size_, input.scalar_type(), "output", call.caller);
  expect_all_have(list, input.numel(), "output", call.caller);
  FlatOutput flat(list);
  operation.recv = flat.data();
  call.add(std::move(operation), elements, input, {});
  call.hold(flat, list);
  return launch(std::move(call), options);
}

TuttiBackend::WorkPtr TuttiBackend::scatter(TensorList& outputs, std::vector<TensorList>& inputs,
                                            const c10d::ScatterOptions& options) {
  Call call = call_of(c10d::OpType::SCATTER, "tutti:scatter");
  const at::Tensor& output = only(outputs, call.caller);
  const int root = root_of(options.rootRank, size_, call.caller);
  const Elements elements = elements_for_moving(output.scalar_type());
  Operation operation{.kind = Collective::scatter, .count = elements_in(output), .root = root};
  if (rank_ != root) {
    TUTTI_TORCH_EXPECT(inputs.empty(), call.caller, "it was given an input; expected none, as the root is ", root);
  } else {
    const TensorList& list = only(inputs, call.caller);
    expect_one_per_rank(list, size_, output.scalar_type(), "input", call.caller);
    expect_all_have(list, output.numel(), "input", call.caller);
    const FlatInput flat(list);
    operation.send = flat.data();
    call.hold(flat, list);
  }
  call.add(std::move(operation), elements, {}, output);
  return launch(std::move(call), options);
}

}  // namespace tutti_torch
