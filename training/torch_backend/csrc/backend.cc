#include "backend.h"

#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <string_view>
#include <utility>

#include "allocator.h"
#include "lists.h"

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

TuttiBackend::Job TuttiBackend::job(c10d::OpType type, const char* title) const {
  return {.type = type, .title = title, .caller = {rank_, title + std::string_view("tutti:").size()}};
}

void TuttiBackend::add(Job& job, Operation operation, const Elements& elements, const at::Tensor& input,
                       const at::Tensor& output, at::ScalarType through) {
  const bool converted = through != at::ScalarType::Undefined;
  const bool in_place = input.is_same(output);
  at::Tensor in = input;
  at::Tensor out = output;
  if (input.defined()) {
    place(job, input);
    in = converted ? converted_input(input, through) : contiguous_input(input);
    operation.send = in.const_data_ptr();
    job.held.push_back(in);
  }
  if (output.defined()) {
    place(job, output);
    out = in_place ? in : converted ? empty_on(output.device(), output.sizes(), through) : contiguous_output(output);
    operation.recv = out.mutable_data_ptr();
    job.outputs.push_back(output);
    if (!out.is_same(output)) {
      job.held.push_back(out);
      job.copies.push_back({output, out});
    }
  }
  operation.count *= elements.per_element;
  operation.type = elements.type;
  job.operations.push_back(std::move(operation));
}

void TuttiBackend::add_reduction(Job& job, tutti::Collective kind, const c10d::ReduceOp& op, const at::Tensor& input,
                                 const at::Tensor& output, std::size_t count, int root) {
  const Reduction reduction = reduction_for(input.scalar_type(), op, job.caller);
  add(job, {.kind = kind, .count = count, .op = reduction.op, .factor = reduction.factor, .root = root},
      reduction.elements, input, output, reduction.through);
}

void TuttiBackend::place(Job& job, const at::Tensor& tensor) {
  expect_served(tensor, job.caller);
  if (!job.device) job.device = tensor.device();
  TUTTI_TORCH_EXPECT(*job.device == tensor.device(), job.caller, "one tensor is on ", *job.device, ", another on ",
                     tensor.device(), "; expected one device");
}

void TuttiBackend::hold(Job& job, const FlatInput& flat, const TensorList& inputs) {
  for (const at::Tensor& input : inputs) place(job, input);
  if (flat.copy().defined()) {
    job.held.push_back(flat.copy());
  } else {
    job.held.append(inputs.begin(), inputs.end());
  }
}

void TuttiBackend::keep(Job& job, FlatOutput& flat, const TensorList& outputs) {
  for (const at::Tensor& output : outputs) place(job, output);
  job.outputs.append(outputs.begin(), outputs.end());
  if (flat.copy().defined()) job.held.push_back(flat.copy());
  for (CopyBack& back : flat.copy_back()) job.copies.push_back(std::move(back));
}

TuttiBackend::WorkPtr TuttiBackend::launch(Job job, bool asynchronous, std::chrono::milliseconds timeout) {
  if (job.device && !job.device->is_cpu()) return launch_on_device(std::move(job), asynchronous);
  const bool limited = timeout > kNoTimeout;
  auto work = c10::make_intrusive<TuttiWork>(job.type, job.title, job.caller, ++sequence_, std::move(job.outputs),
                                             collectives_);
  work->keep(std::move(job.held), std::move(job.copies));
  if (!asynchronous && collectives_->idle()) {
    std::exception_ptr error;
    try {
      if (limited) {
        collectives_->run(job.operations, timeout, options_->timeout);
      } else {
        collectives_->run(job.operations);
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
    collectives_->start(job.operations, [work](std::exception_ptr error) { work->complete(std::move(error)); });
  });
  transfers_.add_to_batch(work);
  // Behind what is still under way: waited for here, where signals are seen.
  if (!asynchronous) work->wait();
  return work;
}

TuttiBackend::WorkPtr TuttiBackend::launch_on_device(Job job, bool asynchronous) {
  auto work = c10::make_intrusive<TuttiWork>(job.type, job.title, job.caller, ++sequence_, job.outputs, collectives_);
  const StreamTurn turn(asynchronous ? streams_.of(*job.device) : current_stream(*job.device));
  for (Operation& operation : job.operations) operation.stream = turn.stream().native_handle();
  translated([&] { collectives_->run(job.operations); });
  for (const CopyBack& back : job.copies) copy_into(back.to, back.from);
  for (const Tensors* tensors : {&job.outputs, &job.held}) {
    for (const at::Tensor& tensor : *tensors) turn.uses(tensor);
  }
  work->complete_on_device(turn.end());
  transfers_.add_to_batch(work);
  return work;
}

}  // namespace tutti_torch
