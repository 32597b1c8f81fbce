#include "training/tensor/gathered_linear.h"

#include <ATen/autocast_mode.h>

#include <memory>
#include <optional>
#include <utility>

#include "training/tensor/region_group.h"

namespace tutti::training {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kGatheredLinear = "gathered_linear";

struct GatheredLinear : torch::autograd::Function<GatheredLinear> {
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& x, const torch::Tensor& weight,
                               const std::optional<torch::Tensor>& bias, const RegionGroupPointer& group) {
    context->saved_data["group"] = c10::IValue::make_capsule(group);
    context->saved_data["has_bias"] = bias.has_value();
    context->save_for_backward({weight.requires_grad() ? x : torch::Tensor(), weight});
    return torch::linear(group->all_gather(x, kGatheredLinear)->wait().flatten(0, 1), weight,
                         bias.value_or(torch::Tensor()));
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const torch::Tensor &x = saved[0], &weight = saved[1], &gradient = gradients[0];
    const RegionGroupPointer group = region_group_of(context);
    const bool for_x = context->needs_input_grad(0), for_weight = context->needs_input_grad(1);
    variable_list result(4);
    // The same calls in the same order on every rank, for what is trained is the same on all.
    std::unique_ptr<InFlight> gathered, scattered;
    if (for_weight) gathered = group->all_gather(x, kGatheredLinear);
    torch::Tensor of_whole;
    if (for_x) of_whole = gradient.matmul(weight);
    torch::Tensor whole;
    if (for_weight) whole = gathered->wait();
    if (for_x) scattered = group->reduce_scatter(of_whole, kGatheredLinear);
    const torch::Tensor rows = gradient.reshape({-1, gradient.size(-1)});
    if (for_weight) result[1] = rows.t().mm(whole.reshape({-1, whole.size(-1)}));
    if (context->saved_data["has_bias"].toBool() && context->needs_input_grad(2)) result[2] = rows.sum(0);
    if (for_x) result[0] = scattered->wait();
    return result;
  }
};

/// Casts as autocast would, had it seen the linear layer.
torch::Tensor cast(const torch::Tensor& tensor) {
  const c10::DeviceType device = tensor.device().type();
  if (!at::autocast::is_autocast_enabled(device)) return tensor;
  return at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), tensor, device);
}

}  // namespace

torch::Tensor gathered_linear(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias,
                              const Communicator& comm, const std::string& layer) {
  if (comm.size() == 1) return torch::linear(x, weight, bias);
  const std::optional<torch::Tensor> cast_bias = bias.defined() ? std::optional(cast(bias)) : std::nullopt;
  return GatheredLinear::apply(cast(x), cast(weight), cast_bias, c10::make_intrusive<RegionGroup>(comm, layer));
}

}  // namespace tutti::training
