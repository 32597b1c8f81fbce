#include "csrc/tensors/tensors.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/ParallelGuard.h>

#include <cstddef>
#include <cstdint>

#include "csrc/tensors/allocator.h"
#include "tutti/tutti.hpp"

namespace tutti_torch {

namespace {

/// Whether the tensors are contiguous and each begins where the one before it ends.
bool follow_each_other(at::TensorList tensors) {
  const std::byte* end = nullptr;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.is_contiguous()) return false;
    if (tensor.numel() == 0) continue;
    const auto* begin = static_cast<const std::byte*>(tensor.const_data_ptr());
    if (end != nullptr && begin != end) return false;
    end = begin + tensor.nbytes();
  }
  return true;
}

std::int64_t elements_of(at::TensorList tensors) {
  std::int64_t sum = 0;
  for (const at::Tensor& tensor : tensors) sum += tensor.numel();
  return sum;
}

void* memory_of(at::TensorList tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() > 0) return tensor.data_ptr();
  }
  return nullptr;
}

/// Returns the tensors' own memory where they follow each other. Else makes `copy` and returns its memory, after
/// `each(tensor, its part of the copy)`.
template <class Each>
void* flat_memory(at::TensorList tensors, at::Tensor& copy, const Each& each) {
  if (follow_each_other(tensors)) return memory_of(tensors);
  copy = empty_on(tensors.front().device(), {elements_of(tensors)}, tensors.front().scalar_type());
  std::int64_t offset = 0;
  for (const at::Tensor& tensor : tensors) {
    each(tensor, copy.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
    offset += tensor.numel();
  }
  return copy.data_ptr();
}

}  // namespace

void expect_served(const at::Tensor& tensor, const Caller& caller) {
  if (tensor.device().is_cpu() && tensor.layout() == c10::kStrided) [[likely]]
    return;
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == c10::kStrided, caller.text(), " with a tensor of layout ",
                              tensor.layout(), "; backend tutti has dense tensors only");
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.is_cuda(), caller.text(), " with a tensor on ", tensor.device(),
                              "; backend tutti has tensors on CPU and CUDA");
  TORCH_CHECK_NOT_IMPLEMENTED(tutti::supports(tutti::Memory::device), caller.text(), " with a tensor on ",
                              tensor.device(), "; this build of backend tutti has CPU tensors only");
}

at::Tensor empty_on(c10::Device device, at::IntArrayRef sizes, at::ScalarType type) {
  return device.is_cpu() ? registered_empty(sizes, type) : at::empty(sizes, at::TensorOptions(device).dtype(type));
}

void expect_served(at::TensorList tensors, at::ScalarType type, const Caller& caller) {
  for (const at::Tensor& tensor : tensors) {
    expect_served(tensor, caller);
    TUTTI_TORCH_EXPECT(tensor.scalar_type() == type, caller, "one tensor is of ", tensor.scalar_type(), ", another of ",
                       type, "; expected one type");
  }
}

void copy_into(const at::Tensor& to, const at::Tensor& from) {
  const c10::ParallelGuard this_thread_alone(true);
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  to.copy_(from);
}

at::Tensor contiguous_output(const at::Tensor& tensor) {
  if (tensor.is_contiguous()) [[likely]]
    return tensor;
  return empty_on(tensor.device(), tensor.sizes(), tensor.scalar_type());
}

at::Tensor contiguous_input(const at::Tensor& tensor) {
  if (tensor.is_contiguous()) [[likely]]
    return tensor;
  at::Tensor other = contiguous_output(tensor);
  copy_into(other, tensor);
  return other;
}

at::Tensor converted_input(const at::Tensor& tensor, at::ScalarType type) {
  at::Tensor other = empty_on(tensor.device(), tensor.sizes(), type);
  copy_into(other, tensor);
  return other;
}

FlatInput::FlatInput(at::TensorList tensors) {
  data_ = flat_memory(tensors, copy_, [](const at::Tensor& from, const at::Tensor& part) { copy_into(part, from); });
}

FlatOutput::FlatOutput(at::TensorList tensors) {
  data_ = flat_memory(tensors, copy_, [this](const at::Tensor& to, const at::Tensor& part) {
    copy_back_.push_back({to, part});
  });
}

}  // namespace tutti_torch
