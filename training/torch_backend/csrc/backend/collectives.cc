// all_reduce, reduce, broadcast, barrier.
#include <torch/csrc/distributed/c10d/Utils.hpp>
#include <utility>

#include "csrc/backend/backend.h"
#include "csrc/tensors/arguments.h"

namespace tutti_torch {

using tutti::Collective;

TuttiBackend::WorkPtr TuttiBackend::broadcast(TensorList& tensors, const c10d::BroadcastOptions& options) {
  Call call = call_of(c10d::OpType::BROADCAST, "tutti:broadcast");
  const at::Tensor& tensor = only(tensors, call.caller);
  const int root = root_of(options.rootRank + options.rootTensor, size_, call.caller);
  call.add({.kind = Collective::broadcast, .count = elements_in(tensor), .root = root},
           elements_for_moving(tensor.scalar_type()), tensor, tensor);
  return launch(std::move(call), options);
}

TuttiBackend::WorkPtr TuttiBackend::allreduce(TensorList& tensors, const c10d::AllreduceOptions& options) {
  Call call = call_of(c10d::OpType::ALLREDUCE, "tutti:all_reduce");
  const at::Tensor& tensor = only(tensors, call.caller);
  if (tensor.layout() != c10::kStrided) return allreduce_of_sparse(tensor, options.reduceOp);
  call.add_reduction(Collective::all_reduce, options.reduceOp, tensor, tensor, elements_in(tensor));
  return launch(std::move(call), options);
}

TuttiBackend::WorkPtr TuttiBackend::allreduce_coalesced(TensorList& tensors,
                                                        const c10d::AllreduceCoalescedOptions& options) {
  Call call = call_of(c10d::OpType::ALLREDUCE_COALESCED, "tutti:all_reduce_coalesced");
  expect_apart(tensors, call.caller);
  for (const at::Tensor& tensor : tensors) {
    call.add_reduction(Collective::all_reduce, options.reduceOp, tensor, tensor, elements_in(tensor));
  }
  return launch(std::move(call), options);
}

TuttiBackend::WorkPtr TuttiBackend::reduce(TensorList& tensors, const c10d::ReduceOptions& options) {
  Call call = call_of(c10d::OpType::REDUCE, "tutti:reduce");
  const at::Tensor& tensor = only(tensors, call.caller);
  const int root = root_of(options.rootRank + options.rootTensor, size_, call.caller);
  // Only the root's tensor is written; torch leaves open what the others' hold, and here it stays as it was.
  call.add_reduction(Collective::reduce, options.reduceOp, tensor, rank_ == root ? tensor : at::Tensor(),
                     elements_in(tensor), root);
  if (rank_ != root) call.outputs.push_back(tensor);
  return launch(std::move(call), options);
}

TuttiBackend::WorkPtr TuttiBackend::barrier(const c10d::BarrierOptions& options) {
  Call call = call_of(c10d::OpType::BARRIER, "tutti:barrier");
  // A rank that comes is done with what is in its stream, as with NCCL's.
  if (options.device && !options.device->is_cpu()) synchronize_current_stream(*options.device);
  call.operations.push_back({.kind = Collective::barrier});
  return launch(std::move(call), options);
}

}  // namespace tutti_torch
