#include "csrc/backend/backend.h"

#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <string_view>
#include <utility>

#include "csrc/tensors/allocator.h"
#include "csrc/tensors/arguments.h"

namespace tutti_torch {

TuttiBackend::TuttiBackend(c10::intrusive_ptr<c10d::Store> store, int rank, int size, tutti::Communicator collectives,
                           tutti::Communicator transfers, c10::intrusive_ptr<Options> options)
    : Backend(rank, size),
      store_(std::move(store)),
      options_(std::move(options)),
      collectives_(Channel::make(std::move(collectives))),
      transfers_(std::move(transfers), rank, size) {
  init();
}

std::shared_ptr<c10::Allocator> TuttiBackend::getMemAllocator() {
  return {registered_allocator(), [](c10::Allocator*) {}};
}

at::Tensor TuttiBackend::allocateTensor(long size, at::TensorOptions options) {
  const Caller caller{rank_, "allocate_tensor"};
  TORCH_CHECK_NOT_IMPLEMENTED(options.device().is_cpu(), caller.text(), " on ", options.device(),
                              "; expected the CPU: peers reach the memory of CUDA tensors as it is");
  TUTTI_TORCH_EXPECT(size >= 0, caller, "size is ", size, "; expected 0 or more");
  return registered_empty({size}, c10::typeMetaToScalarType(options.dtype()));
}

TuttiBackend::WorkPtr TuttiBackend::send(TensorList& tensors, int peer, int tag) {
  return transfers_.send(only(tensors, {rank_, "send"}), peer, tag, ++messages_);
}

TuttiBackend::WorkPtr TuttiBackend::recv(TensorList& tensors, int peer, int tag) {
  return transfers_.receive(only(tensors, {rank_, "recv"}), peer, tag, ++messages_);
}

TuttiBackend::WorkPtr TuttiBackend::recvAnysource(TensorList& tensors, int tag) {
  return transfers_.receive_from_any(only(tensors, {rank_, "recv from any source"}), tag, ++messages_);
}

Call TuttiBackend::call_of(c10d::OpType type, const char* title) const {
  return {.type = type, .title = title, .caller = {rank_, title + std::string_view("tutti:").size()}};
}

TuttiBackend::WorkPtr TuttiBackend::launch(Call call, bool asynchronous, std::chrono::milliseconds timeout) {
  if (call.device && !call.device->is_cpu()) return launch_on_device(std::move(call), asynchronous);
  const bool limited = timeout > kNoTimeout;
  auto work = c10::make_intrusive<TuttiWork>(call.type, call.title, call.caller, ++sequence_, std::move(call.outputs),
                                             collectives_);
  work->keep(std::move(call.held), std::move(call.copies));
  if (!asynchronous && collectives_->idle()) {
    std::exception_ptr error;
    try {
      if (limited) {
        collectives_->run(call.operations, timeout, options_->timeout);
      } else {
        collectives_->run(call.operations);
      }
    } catch (const tutti::Error& failure) {
      error = torch_error(failure);
    }
    work->complete(error);
    if (error) std::rethrow_exception(error);
    return work;
  }
  if (limited) work->limit(timeout);
  translated([&] {
    collectives_->start(call.operations, [work](std::exception_ptr error) { work->complete(std::move(error)); });
  });
  transfers_.add_to_batch(work);
  // Behind what is still under way: waited for here, where signals are seen.
  if (!asynchronous) work->wait();
  return work;
}

TuttiBackend::WorkPtr TuttiBackend::launch_on_device(Call call, bool asynchronous) {
  auto work =
      c10::make_intrusive<TuttiWork>(call.type, call.title, call.caller, ++sequence_, call.outputs, collectives_);
  const StreamScope scope(asynchronous ? streams_.of(*call.device) : current_stream(*call.device));
  for (Operation& operation : call.operations) operation.stream = scope.stream().native_handle();
  translated([&] { collectives_->run(call.operations); });
  for (const CopyBack& back : call.copies) copy_into(back.to, back.from);
  for (const Tensors* tensors : {&call.outputs, &call.held}) {
    for (const at::Tensor& tensor : *tensors) scope.uses(tensor);
  }
  work->complete_on_device(scope.end());
  transfers_.add_to_batch(work);
  return work;
}

}  // namespace tutti_torch
