#include "training/tensor/regions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <utility>

#include "training/abort.h"
#include "training/streams.h"
#include "training/tensor/region_group.h"
#include "training/tensors.h"

namespace tutti::training {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

enum class RegionKind : std::uint8_t { copy, reduce, scatter, gather, gather_sequence, scatter_sequence };

constexpr RegionKind transpose(RegionKind kind) {
  switch (kind) {
    case RegionKind::copy: return RegionKind::reduce;
    case RegionKind::reduce: return RegionKind::copy;
    case RegionKind::scatter: return RegionKind::gather;
    case RegionKind::gather: return RegionKind::scatter;
    case RegionKind::gather_sequence: return RegionKind::scatter_sequence;
    case RegionKind::scatter_sequence: return RegionKind::gather_sequence;
  }
  return kind;
}

constexpr const char* name_of(RegionKind kind) {
  switch (kind) {
    case RegionKind::copy: return "copy_to_region";
    case RegionKind::reduce: return "reduce_from_region";
    case RegionKind::scatter: return "scatter_to_region";
    case RegionKind::gather: return "gather_from_region";
    case RegionKind::gather_sequence: return "gather_sequence";
    case RegionKind::scatter_sequence: return "scatter_sequence";
  }
  return "?";
}

void check_divisible(const torch::Tensor& x, std::int64_t dim, RegionKind kind, RegionGroup& group) {
  if (x.size(dim) % group.comm.size() == 0) return;
  fail_on_all(group.comm, fmt::format("{}: dimension {} of the input of sizes [{}] cannot be divided by {} ranks",
                                      group.named(name_of(kind)), dim, fmt::join(x.sizes(), ", "), group.comm.size()));
}

torch::Tensor run(RegionKind kind, const torch::Tensor& x, RegionGroup& group) {
  const std::int64_t size = group.comm.size();
  const char* const name = name_of(kind);
  (void)data_type_of(x, group.comm, group.named(name));
  const bool whole = kind == RegionKind::copy || kind == RegionKind::reduce;
  if (!whole && x.dim() == 0) {
    fail_on_all(group.comm, fmt::format("{}: the input has no dimensions", group.named(name)));
  }
  switch (kind) {
    case RegionKind::copy: return x;
    case RegionKind::reduce: return group.all_reduce(x, name);
    case RegionKind::scatter: {
      check_divisible(x, x.dim() - 1, kind, group);
      const std::int64_t part = x.size(-1) / size;
      return x.narrow(-1, group.comm.rank() * part, part).clone(at::MemoryFormat::Contiguous);
    }
    case RegionKind::gather: {
      std::vector<std::int64_t> sizes = x.sizes().vec();
      sizes.back() *= size;
      return group.all_gather(x, name)->wait().movedim(0, -2).reshape(sizes);
    }
    case RegionKind::gather_sequence: return group.all_gather(x, name)->wait().flatten(0, 1);
    case RegionKind::scatter_sequence: check_divisible(x, 0, kind, group); return group.reduce_scatter(x, name)->wait();
  }
  return x;
}

struct Region : torch::autograd::Function<Region> {
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& x, const RegionGroupPointer& group,
                               RegionKind kind) {
    context->saved_data["group"] = c10::IValue::make_capsule(group);
    context->saved_data["kind"] = static_cast<std::int64_t>(kind);
    return run(kind, x, *group);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto kind = static_cast<RegionKind>(context->saved_data["kind"].toInt());
    return {Region::apply(gradients[0], region_group_of(context), transpose(kind)), {}, {}};
  }
};

torch::Tensor cross(RegionKind kind, const torch::Tensor& x, const Communicator& comm, const std::string& layer) {
  if (comm.size() == 1) return x;
  return Region::apply(x, c10::make_intrusive<RegionGroup>(comm, layer), kind);
}

struct SumGradients : torch::autograd::Function<SumGradients> {
  static variable_list forward(AutogradContext* context, at::TensorList parameters, const RegionGroupPointer& group) {
    context->saved_data["group"] = c10::IValue::make_capsule(group);
    return parameters.vec();
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const RegionGroupPointer group = region_group_of(context);
    std::vector<torch::Tensor> flat;
    for (const torch::Tensor& gradient : gradients) flat.push_back(gradient.reshape(-1));
    const torch::Tensor sum = group->all_reduce(torch::cat(flat), "sum_gradients");
    variable_list result;
    std::int64_t offset = 0;
    for (const torch::Tensor& gradient : gradients) {
      // Copies: AccumulateGrad would keep a view of all of them alive as one parameter's gradient.
      result.push_back(sum.narrow(0, offset, gradient.numel()).view(gradient.sizes()).clone());
      offset += gradient.numel();
    }
    result.emplace_back();
    return result;
  }
};

}  // namespace

DataType data_type_of(const torch::Tensor& tensor, const Communicator& comm, const std::string& who) {
  if (!is_communicable(tensor)) {
    fail_on_all(comm,
                fmt::format("{}: the tensor is a {} on {}; only dense tensors on the CPU or a CUDA device can be used",
                            who, c10::str(tensor.layout()), tensor.device().str()));
  }
  if (const std::optional<DataType> type = floating_type_of(tensor)) return *type;
  fail_on_all(comm, fmt::format("{}: the tensor is of type {}; it can be f32, f64, f16 or bf16", who,
                                c10::toString(tensor.scalar_type())));
}

torch::Tensor copy_to_region(const torch::Tensor& x, const Communicator& comm, const std::string& layer) {
  return cross(RegionKind::copy, x, comm, layer);
}
torch::Tensor reduce_from_region(const torch::Tensor& x, const Communicator& comm, const std::string& layer) {
  return cross(RegionKind::reduce, x, comm, layer);
}
torch::Tensor scatter_to_region(const torch::Tensor& x, const Communicator& comm, const std::string& layer) {
  return cross(RegionKind::scatter, x, comm, layer);
}
torch::Tensor gather_from_region(const torch::Tensor& x, const Communicator& comm, const std::string& layer) {
  return cross(RegionKind::gather, x, comm, layer);
}
torch::Tensor gather_sequence(const torch::Tensor& x, const Communicator& comm, const std::string& layer) {
  return cross(RegionKind::gather_sequence, x, comm, layer);
}
torch::Tensor scatter_sequence(const torch::Tensor& x, const Communicator& comm, const std::string& layer) {
  return cross(RegionKind::scatter_sequence, x, comm, layer);
}

std::vector<torch::Tensor> sum_gradients(const std::vector<torch::Tensor>& parameters, const Communicator& comm,
                                         const std::string& layer) {
  if (comm.size() == 1 || !torch::GradMode::is_enabled()) return parameters;
  variable_list trained;
  for (const torch::Tensor& parameter : parameters) {
    if (!parameter.defined() || !parameter.requires_grad()) continue;
    if (!trained.empty() && parameter.scalar_type() != trained[0].scalar_type()) {
      fail_on_all(comm, fmt::format("{}{}sum_gradients: parameters are of types {} and {}; they must be of one type",
                                    layer, layer.empty() ? "" : ": ", c10::toString(trained[0].scalar_type()),
                                    c10::toString(parameter.scalar_type())));
    }
    trained.push_back(parameter);
  }
  if (trained.empty()) return parameters;
  const variable_list passed =
      SumGradients::apply(at::TensorList(trained), c10::make_intrusive<RegionGroup>(comm, layer));
  std::vector<torch::Tensor> result;
  auto next = passed.begin();
  for (const torch::Tensor& parameter : parameters) {
    result.push_back(parameter.defined() && parameter.requires_grad() ? *next++ : parameter);
  }
  return result;
}

}  // namespace tutti::training
