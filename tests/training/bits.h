// Whether tensors are the same to the bit.
#pragma once

#include <torch/torch.h>

#include <cstring>

namespace tutti::training {

/// Two undefined tensors are the same, too.
inline bool same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  if (a.defined() != b.defined()) return false;
  return !a.defined() || (a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
                          std::memcmp(a.contiguous().data_ptr(), b.contiguous().data_ptr(), a.nbytes()) == 0);
}

}  // namespace tutti::training
