// Tensors as plain memory: what may be passed, and lists of tensors as one flat buffer.
//
//   const FlatInput in(inputs);      // in.data(): their memory where they follow each other, else a copy
//   FlatOutput out(outputs);         // the same; out.copy_back() says what to copy after the call
//
// Copies run on the calling thread alone, outside autograd: some are made by Tutti's threads, where a pool of OpenMP's
// would be one too many.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <vector>

#include "csrc/base/errors.h"

namespace tutti_torch {

/// Errors: NotImplementedError for memory that Tutti does not serve here (host memory always, a CUDA device's where the
/// build has CUDA), and for a sparse tensor.
void expect_served(const at::Tensor& tensor, const Caller& caller);

/// All of one type, and each one served. Errors: ValueError, NotImplementedError.
void expect_served(at::TensorList tensors, at::ScalarType type, const Caller& caller);

/// Contiguous memory on a device: registered memory on the host's, torch's own on another.
at::Tensor empty_on(c10::Device device, at::IntArrayRef sizes, at::ScalarType type);

/// Returns its elements in contiguous memory: `tensor` itself where it is contiguous.
at::Tensor contiguous_input(const at::Tensor& tensor);
/// Returns its values in contiguous memory of their own, of another type.
at::Tensor converted_input(const at::Tensor& tensor, at::ScalarType type);
/// Contiguous memory for a result of `tensor`'s shape: `tensor` itself where it is contiguous, else to be copied back.
at::Tensor contiguous_output(const at::Tensor& tensor);

void copy_into(const at::Tensor& to, const at::Tensor& from);

/// A copy to be made when a call is done.
struct CopyBack {
  at::Tensor to;
  at::Tensor from;
};

/// The elements of all tensors of a list, one behind the other: the tensors' own memory where they are contiguous and
/// follow each other, else a copy. Does not keep the tensors alive.
class FlatInput {
 public:
  explicit FlatInput(at::TensorList tensors);
  const void* data() const { return data_; }
  const at::Tensor& copy() const { return copy_; }  // undefined: there is none

 private:
  const void* data_ = nullptr;
  at::Tensor copy_;
};

/// Room for the elements of all tensors of a list: the tensors' own memory as above, else a buffer to copy back from.
class FlatOutput {
 public:
  explicit FlatOutput(at::TensorList tensors);
  void* data() const { return data_; }
  const at::Tensor& copy() const { return copy_; }  // undefined: there is none
  /// From the copy into the tensors; empty where there is none.
  std::vector<CopyBack>& copy_back() { return copy_back_; }

 private:
  void* data_ = nullptr;
  at::Tensor copy_;
  std::vector<CopyBack> copy_back_;
};

}  // namespace tutti_torch
