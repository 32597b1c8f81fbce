// A module's tensors, as every strategy of this layer looks at them.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "tutti/types.hpp"

namespace tutti::training {

struct NamedTensor {
  std::string name;
  torch::Tensor tensor;
};

/// In order of registration. A tensor registered under two names (tied weights) comes once, under its first name.
std::vector<NamedTensor> parameters_of(const torch::nn::Module& module);
std::vector<NamedTensor> buffers_of(const torch::nn::Module& module);

/// The number of elements, as the library's calls take it.
inline std::size_t count_of(const torch::Tensor& tensor) { return static_cast<std::size_t>(tensor.numel()); }

/// Returns the library's name of a type that it can add up: f32, f64, f16, bf16. Nothing for other types.
std::optional<DataType> floating_type_of(const torch::Tensor& tensor);

}  // namespace tutti::training
