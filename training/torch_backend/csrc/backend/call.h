// What one call of torch comes down to: Tutti's operations, and the tensors that they need.
//
//   Call call{.type = c10d::OpType::BROADCAST, .title = "tutti:broadcast", .caller = {rank, "broadcast"}};
//   call.add({.kind = tutti::Collective::broadcast, .count = elements}, elements_for_moving(type), tensor, tensor);
//
// Memory: operations have plain pointers. `outputs` and `held` keep the memory alive.
// Errors: errors.h, for a tensor that is not served, and for tensors on several devices.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <optional>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "csrc/base/errors.h"
#include "csrc/execution/operation.h"
#include "csrc/execution/work.h"
#include "csrc/tensors/tensors.h"
#include "csrc/tensors/types.h"
#include "tutti/tutti.hpp"

namespace tutti_torch {

struct Call {
  c10d::OpType type;
  const char* title;  // "tutti:all_reduce"
  Caller caller;
  c10::SmallVector<Operation, 1> operations = {};
  Tensors outputs = {};
  Tensors held = {};                       // alive until done; outputs are anyway
  std::vector<CopyBack> copies = {};       // once done, before it shows
  std::optional<c10::Device> device = {};  // where all of it is; none: there are no tensors

  /// Adds one operation over whole tensors, by way of temporaries where one is not contiguous (or `through` is a type).
  /// `operation` says all but the memory and the elements; its count is of torch's. Either tensor may be undefined
  /// where Tutti needs none; the same one twice means in place.
  void add(Operation operation, const Elements& elements, const at::Tensor& input, const at::Tensor& output,
           at::ScalarType through = at::ScalarType::Undefined);
  /// Adds a reduction by `op` in the same way. Errors: ValueError where the type has no such reduction.
  void add_reduction(tutti::Collective kind, const c10d::ReduceOp& op, const at::Tensor& input,
                     const at::Tensor& output, std::size_t count, int root = 0);
  /// Holds a list whose memory an operation reads.
  void hold(const FlatInput& flat, const std::vector<at::Tensor>& inputs);
  /// Holds a list whose memory an operation writes.
  void hold(FlatOutput& flat, const std::vector<at::Tensor>& outputs);

 private:
  /// Checks that `tensor` is served, and on the device of the others.
  void place(const at::Tensor& tensor);
};

}  // namespace tutti_torch
