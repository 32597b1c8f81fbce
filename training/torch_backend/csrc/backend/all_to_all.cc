// all_to_all, by lists and by splits of one tensor.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "csrc/backend/backend.h"
#include "csrc/tensors/arguments.h"

namespace tutti_torch {

using tutti::Collective;

namespace {

std::vector<std::size_t> offsets_of(const std::vector<std::size_t>& counts) {
  std::vector<std::size_t> offsets(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), offsets.begin(), std::size_t{0});
  return offsets;
}

/// Returns the counts of one tensor that is split along its first dimension; no splits: into equal parts.
std::vector<std::size_t> counts_of(const at::Tensor& tensor, const std::vector<int64_t>& splits, int size,
                                   std::size_t per_element, const char* name, const Caller& caller) {
  TUTTI_TORCH_EXPECT(tensor.dim() > 0, caller, "the ", name, " has 0 dimensions; expected at least 1, to split");
  const std::int64_t rows = tensor.size(0);
  const std::size_t per_row = rows == 0 ? 0 : elements_in(tensor) / static_cast<std::size_t>(rows) * per_element;
  if (splits.empty()) {
    TUTTI_TORCH_EXPECT(rows % size == 0, caller, "the ", name, "'s first dimension is ", rows,
                       "; expected a multiple of the group's ", size, " ranks, or splits");
    return std::vector<std::size_t>(static_cast<std::size_t>(size), static_cast<std::size_t>(rows / size) * per_row);
  }
  TUTTI_TORCH_EXPECT(splits.size() == static_cast<std::size_t>(size), caller, "the ", name, " has ", splits.size(),
                     " splits; expected ", size, ", one per rank");
  std::vector<std::size_t> counts;
  std::int64_t sum = 0;
  for (const std::int64_t split : splits) {
    TUTTI_TORCH_EXPECT(split >= 0, caller, "the ", name, " has a split of ", split, "; expected none below 0");
    counts.push_back(static_cast<std::size_t>(split) * per_row);
    sum += split;
  }
  TUTTI_TORCH_EXPECT(sum == rows, caller, "the splits of the ", name, " add up to ", sum,
                     "; expected its first dimension, ", rows);
  return counts;
}

std::vector<std::size_t> counts_of(at::TensorList tensors, std::size_t per_element) {
  std::vector<std::size_t> counts;
  for (const at::Tensor& tensor : tensors) counts.push_back(elements_in(tensor) * per_element);
  return counts;
}

std::shared_ptr<const Splits> splits_of(std::vector<std::size_t> sent, std::vector<std::size_t> received) {
  auto splits = std::make_shared<Splits>();
  splits->send_offsets = offsets_of(sent);
  splits->recv_offsets = offsets_of(received);
  splits->send_counts = std::move(sent);
  splits->recv_counts = std::move(received);
  return splits;
}

}  // namespace

TuttiBackend::WorkPtr TuttiBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                  std::vector<int64_t>& output_splits,
                                                  std::vector<int64_t>& input_splits,
                                                  const c10d::AllToAllOptions& options) {
  Call call = call_of(c10d::OpType::ALLTOALL_BASE, "tutti:all_to_all_single");
  TUTTI_TORCH_EXPECT(output.scalar_type() == input.scalar_type(), call.caller, "input and output are of ",
                     input.scalar_type(), " and ", output.scalar_type(), "; expected one type");
  const Elements elements = elements_for_moving(input.scalar_type());
  auto sent = counts_of(input, input_splits, size_, elements.per_element, "input", call.caller);
  auto received = counts_of(output, output_splits, size_, elements.per_element, "output", call.caller);
  if (input_splits.empty() && output_splits.empty()) {
    TUTTI_TORCH_EXPECT(input.numel() == output.numel(), call.caller, "the input has ", input.numel(),
                       " elements, the output ", output.numel(), "; expected as many");
    call.add({.kind = Collective::all_to_all, .count = elements_in(input) / static_cast<std::size_t>(size_)}, elements,
             input, output);
  } else {
    call.add({.kind = Collective::all_to_allv, .splits = splits_of(std::move(sent), std::move(received))}, elements,
             input, output);
  }
  return launch(std::move(call), options);
}

TuttiBackend::WorkPtr TuttiBackend::alltoall(TensorList& outputs, TensorList& inputs,
                                             const c10d::AllToAllOptions& options) {
  Call call = call_of(c10d::OpType::ALLTOALL, "tutti:all_to_all");
  TUTTI_TORCH_EXPECT(!inputs.empty(), call.caller, "the input list is empty; expected one tensor per rank");
  const at::ScalarType type = inputs.front().scalar_type();
  expect_one_per_rank(inputs, size_, type, "input", call.caller);
  expect_one_per_rank(outputs, size_, type, "output", call.caller);
  const Elements elements = elements_for_moving(type);
  // A rank does not know whether the others' lists are even, so each call is an uneven one.
  const FlatInput in(inputs);
  FlatOutput out(outputs);
  call.hold(in, inputs);
  call.add({.kind = Collective::all_to_allv,
            .send = in.data(),
            .recv = out.data(),
            .splits = splits_of(counts_of(inputs, elements.per_element), counts_of(outputs, elements.per_element))},
           elements, {}, {});
  call.hold(out, outputs);
  return launch(std::move(call), options);
}

}  // namespace tutti_torch
