#include "training/tensors.h"

#include <unordered_set>

namespace tutti::training {
namespace {

template <class Items>
std::vector<NamedTensor> without_repeats(const Items& items) {
  std::vector<NamedTensor> result;
  std::unordered_set<const void*> seen;
  for (const auto& item : items) {
    const torch::Tensor& tensor = item.value();
    if (tensor.defined() && seen.insert(tensor.unsafeGetTensorImpl()).second) result.push_back({item.key(), tensor});
  }
  return result;
}

}  // namespace

std::vector<NamedTensor> parameters_of(const torch::nn::Module& module) {
  return without_repeats(module.named_parameters());
}

std::vector<NamedTensor> buffers_of(const torch::nn::Module& module) { return without_repeats(module.named_buffers()); }

std::optional<DataType> floating_type_of(const torch::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case torch::kFloat32: return DataType::f32;
    case torch::kFloat64: return DataType::f64;
    case torch::kFloat16: return DataType::f16;
    case torch::kBFloat16: return DataType::bf16;
    default: return std::nullopt;
  }
}

}  // namespace tutti::training
