#include "training/tensor/gathered_linear.h"

#include <ATen/autocast_mode.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "training/memory/pool.h"
#include "training/tensor/region_group.h"
#include "training/tensor/regions.h"

namespace tutti::training {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// A collective under way. The tensors that it reads and writes stay until it has ended, whatever is thrown meanwhile.
class InFlight {
 public:
  InFlight(Work work, torch::Tensor in, torch::Tensor out)
      : work_(std::move(work)), in_(std::move(in)), out_(std::move(out)) {}
  ~InFlight() {
    try {
      if (work_) work_.wait();
    } catch (const std::exception&) {
      // It has ended; its error is or will be seen elsewhere.
    }
  }
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

  torch::Tensor wait() {
    std::exchange(work_, {}).wait();
    return out_;
  }

 private:
  Work work_;
  torch::Tensor in_, out_;
};

std::vector<std::int64_t> with_time(const torch::Tensor& x, std::int64_t time) {
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes[0] = time;
  return sizes;
}

std::unique_ptr<InFlight> gather(const torch::Tensor& x, RegionGroup& group) {
  const DataType type = data_type_of(x, group.comm, group.named("gathered_linear"));
  const torch::Tensor in = x.contiguous();
  const torch::Tensor out =
      RegisteredPool::process()->empty(with_time(in, in.size(0) * group.comm.size()), in.scalar_type());
  const auto count = static_cast<std::size_t>(in.numel());
  return std::make_unique<InFlight>(group.comm.all_gather_async(in.data_ptr(), out.data_ptr(), count, type), in, out);
}

std::unique_ptr<InFlight> reduce_scatter(const torch::Tensor& x, RegionGroup& group) {
  const DataType type = data_type_of(x, group.comm, group.named("gathered_linear"));
  const torch::Tensor in = x.contiguous();
  const torch::Tensor out =
      RegisteredPool::process()->empty(with_time(in, in.size(0) / group.comm.size()), in.scalar_type());
  const auto count = static_cast<std::size_t>(out.numel());
  return std::make_unique<InFlight>(group.comm.reduce_scatter_async(in.data_ptr(), out.data_ptr(), count, type), in,
                                    out);
}

struct GatheredLinear : torch::autograd::Function<GatheredLinear> {
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& x, const torch::Tensor& weight,
                               const std::optional<torch::Tensor>& bias, const RegionGroupPointer& group) {
    context->saved_data["group"] = c10::IValue::make_capsule(group);
    context->saved_data["has_bias"] = bias.has_value();
    context->save_for_backward({weight.requires_grad() ? x : torch::Tensor(), weight});
    return torch::linear(gather(x, *group)->wait(), weight, bias.value_or(torch::Tensor()));
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const torch::Tensor &x = saved[0], &weight = saved[1], &gradient = gradients[0];
    const RegionGroupPointer group = region_group_of(context);
    const bool for_x = context->needs_input_grad(0), for_weight = context->needs_input_grad(1);
    variable_list result(4);
    // Every rank makes the same calls in the same order, whatever it needs itself: which tensors are trained is the
    // same.
    std::unique_ptr<InFlight> gathered, scattered;
    if (for_weight) gathered = gather(x, *group);
    torch::Tensor of_whole;
    if (for_x) of_whole = gradient.matmul(weight);
    torch::Tensor whole;
    if (for_weight) whole = gathered->wait();
    if (for_x) scattered = reduce_scatter(of_whole, *group);
    const torch::Tensor rows = gradient.reshape({-1, gradient.size(-1)});
    if (for_weight) result[1] = rows.t().mm(whole.reshape({-1, whole.size(-1)}));
    if (context->saved_data["has_bias"].toBool() && context->needs_input_grad(2)) result[2] = rows.sum(0);
    if (for_x) result[0] = scattered->wait();
    return result;
  }
};

/// As autocast would, had it seen the linear layer.
torch::Tensor cast(const torch::Tensor& tensor) {
  if (!at::autocast::is_autocast_enabled(at::kCPU)) return tensor;
  return at::autocast::cached_cast(at::autocast::get_autocast_dtype(at::kCPU), tensor, at::kCPU);
}

}  // namespace

torch::Tensor gathered_linear(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias,
                              const Communicator& comm, const std::string& layer) {
  if (comm.size() == 1) return torch::linear(x, weight, bias);
  const std::optional<torch::Tensor> cast_bias = bias.defined() ? std::optional(cast(bias)) : std::nullopt;
  return GatheredLinear::apply(cast(x), cast(weight), cast_bias, c10::make_intrusive<RegionGroup>(comm, layer));
}

}  // namespace tutti::training
