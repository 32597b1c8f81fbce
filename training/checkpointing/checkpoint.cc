#include "training/checkpointing/checkpoint.h"

#include <ATen/SequenceNumber.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>

#include "training/gradient_hooks.h"
#include "training/hash.h"
#include "training/tensors.h"
#include "tutti/tutti.hpp"

namespace tutti::training {
namespace {

using torch::autograd::Node;
using Tensors = std::vector<torch::Tensor>;

[[noreturn]] void fail(const std::string& what) { throw Error(Code::invalid_argument, "checkpoint: " + what); }

/// Generators and what state they were in.
class RandomState {
 public:
  RandomState() = default;
  explicit RandomState(std::vector<at::Generator> generators) : generators_(std::move(generators)) {
    for (at::Generator& generator : generators_) {
      const std::lock_guard<std::mutex> lock(generator.mutex());
      states_.push_back(generator.get_state());
    }
  }
  void set() {
    for (std::size_t i = 0; i < generators_.size(); ++i) {
      const std::lock_guard<std::mutex> lock(generators_[i].mutex());
      generators_[i].set_state(states_[i]);
    }
  }
  const std::vector<at::Generator>& generators() const { return generators_; }

 private:
  std::vector<at::Generator> generators_;
  Tensors states_;
};

/// Sets a state; at the end what was before.
class RandomGuard {
 public:
  explicit RandomGuard(RandomState& state) : before_(state.generators()) { state.set(); }
  ~RandomGuard() { before_.set(); }
  RandomGuard(const RandomGuard&) = delete;
  RandomGuard& operator=(const RandomGuard&) = delete;

 private:
  RandomState before_;
};

struct AutocastState {
  struct Device {
    torch::DeviceType device;
    bool enabled;
    torch::ScalarType type;
  };
  AutocastState() = default;
  explicit AutocastState(const std::set<torch::DeviceType>& kinds) : cache(at::autocast::is_autocast_cache_enabled()) {
    for (torch::DeviceType kind : kinds) {
      if (!at::autocast::is_autocast_available(kind)) continue;
      devices.push_back({kind, at::autocast::is_autocast_enabled(kind), at::autocast::get_autocast_dtype(kind)});
    }
  }
  void set() const {
    for (const Device& device : devices) {
      at::autocast::set_autocast_enabled(device.device, device.enabled);
      at::autocast::set_autocast_dtype(device.device, device.type);
    }
    at::autocast::set_autocast_cache_enabled(cache);
  }
  bool enabled() const {
    for (const Device& device : devices) {
      if (device.enabled) return true;
    }
    return false;
  }
  std::set<torch::DeviceType> kinds() const {
    std::set<torch::DeviceType> result;
    for (const Device& device : devices) result.insert(device.device);
    return result;
  }

  std::vector<Device> devices;
  bool cache = true;
};

/// The second run casts weights anew: a cast that was cached before belongs to another graph.
class AutocastGuard {
 public:
  explicit AutocastGuard(const AutocastState& state) : before_(state.kinds()), clear_(state.enabled()) {
    at::autocast::increment_nesting();
    if (clear_) at::autocast::clear_cache();
    state.set();
  }
  ~AutocastGuard() {
    if (at::autocast::decrement_nesting() == 0 || clear_) at::autocast::clear_cache();
    before_.set();
  }
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  AutocastState before_;
  bool clear_;
};

/// The first run has no gradients; nor, in LibTorch of 2025 and before (pytorch pull request 165068), would the casts
/// that it put into the cache, for others to find.
class NoAutocastCache {
 public:
  NoAutocastCache() { at::autocast::set_autocast_cache_enabled(false); }
  ~NoAutocastCache() { at::autocast::set_autocast_cache_enabled(before_); }
  NoAutocastCache(const NoAutocastCache&) = delete;
  NoAutocastCache& operator=(const NoAutocastCache&) = delete;

 private:
  bool before_ = at::autocast::is_autocast_cache_enabled();
};

/// Puts buffers back that the second run changed: the first has changed them already. Looks at values, and changes them
/// below autograd, for batch norm changes its statistics without counting up their version, and must find it so.
class BufferGuard {
 public:
  explicit BufferGuard(const Tensors& buffers) {
    for (const torch::Tensor& buffer : buffers) {
      if (buffer.defined()) items_.emplace_back(buffer, buffer.detach().clone());
    }
  }
  ~BufferGuard() {
    const at::AutoDispatchBelowADInplaceOrView below;
    for (auto& [buffer, before] : items_) {
      if (!torch::equal(buffer, before)) buffer.copy_(before);
    }
  }
  BufferGuard(const BufferGuard&) = delete;
  BufferGuard& operator=(const BufferGuard&) = delete;

 private:
  std::vector<std::pair<torch::Tensor, torch::Tensor>> items_;
};

struct Output {
  torch::ScalarType type;
  std::vector<std::int64_t> sizes;
  std::uint64_t hash;
};

std::vector<Output> describe(const Tensors& outputs, bool with_bytes) {
  std::vector<Output> result;
  for (const torch::Tensor& output : outputs) {
    if (!output.defined()) fail("the function returned an undefined tensor; outputs must be defined");
    std::uint64_t hash = 0;
    if (with_bytes) {
      const torch::Tensor bytes = output.detach().cpu().contiguous();
      hash = ByteHash::of(bytes.data_ptr(), bytes.nbytes());
    }
    result.push_back({output.scalar_type(), output.sizes().vec(), hash});
  }
  return result;
}

void check_same(const std::vector<Output>& first, const std::vector<Output>& second) {
  if (first.size() != second.size()) {
    fail(fmt::format("the function gave {} outputs in forward and {} when run again in backward", first.size(),
                     second.size()));
  }
  for (std::size_t i = 0; i < first.size(); ++i) {
    const Output &a = first[i], &b = second[i];
    if (a.type != b.type || a.sizes != b.sizes) {
      fail(fmt::format("output {} was {} [{}] in forward and {} [{}] when run again in backward", i,
                       c10::toString(a.type), fmt::join(a.sizes, ", "), c10::toString(b.type),
                       fmt::join(b.sizes, ", ")));
    }
    if (a.hash != b.hash) {
      fail(
          fmt::format("output {} has other values when run again in backward; the function draws from a generator "
                      "that is not in CheckpointOptions, or from one that another thread uses",
                      i));
    }
  }
}

/// Gradients that would leave through another tensor than those that are given to backward would be lost.
void check_graph(const Tensors& outputs, const Tensors& known, std::uint64_t begin) {
  std::unordered_set<const void*> leaves;
  for (const torch::Tensor& tensor : known) leaves.insert(tensor.unsafeGetTensorImpl());
  std::unordered_set<const Node*> seen;
  std::vector<Node*> open;
  const auto visit = [&](Node* node) {
    if (node != nullptr && seen.insert(node).second) open.push_back(node);
  };
  for (const torch::Tensor& output : outputs) visit(torch::autograd::impl::gradient_edge(output).function.get());
  while (!open.empty()) {
    Node* const node = open.back();
    open.pop_back();
    if (const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(node)) {
      if (leaves.contains(leaf->variable.unsafeGetTensorImpl())) continue;
      fail(fmt::format(
          "the function uses a trained tensor of shape [{}] that is neither an input nor a parameter of the "
          "module; its gradient would be lost, so pass it as an input",
          fmt::join(leaf->variable.sizes(), ", ")));
    }
    if (node->sequence_nr() < begin) {
      fail(fmt::format("the function uses a tensor from outside ({}) that needs a gradient; pass it as an input",
                       node->name()));
    }
    for (const torch::autograd::Edge& edge : node->next_edges()) visit(edge.function.get());
  }
}

struct Saved : torch::CustomClassHolder {
  /// Tensors of the node are the defined inputs, then the parameters.
  Tensors inputs_of(at::TensorList tensors) const {
    Tensors inputs(defined.size());
    std::size_t next = 0;
    for (std::size_t i = 0; i < defined.size(); ++i) {
      if (defined[i]) inputs[i] = tensors[next++];
    }
    return inputs;
  }

  CheckpointListFunction function;
  std::vector<bool> defined;      // of each input
  std::size_t defined_count = 0;  // how many are
  Tensors buffers;
  RandomState random;
  AutocastState autocast;
  bool check_outputs = false;
  std::vector<Output> outputs;
};
using SavedPointer = c10::intrusive_ptr<Saved>;

struct Recompute : torch::autograd::Function<Recompute> {
  static Tensors forward(torch::autograd::AutogradContext* context, SavedPointer saved, at::TensorList tensors) {
    Tensors outputs;
    {
      const NoAutocastCache no_cache;
      outputs = saved->function(saved->inputs_of(tensors));
    }
    saved->outputs = describe(outputs, saved->check_outputs);
    context->set_materialize_grads(false);
    context->save_for_backward(tensors.vec());  // parameters, too: so that a change of them is noticed
    context->saved_data["saved"] = at::IValue::make_capsule(std::move(saved));
    return outputs;
  }

  static Tensors backward(torch::autograd::AutogradContext* context, Tensors gradients) {
    if (torch::GradMode::is_enabled())
      fail("backward with create_graph is not supported; there are no second derivatives");
    const at::IValue capsule = context->saved_data["saved"];
    const auto saved = static_cast<Saved*>(capsule.toCapsule().get());  // whom the context keeps
    Tensors tensors = context->get_saved_variables();
    std::vector<std::size_t> wanted;  // who needs a gradient in this pass
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].requires_grad() && context->needs_input_grad(i)) wanted.push_back(i);
    }
    for (std::size_t i = 0; i < saved->defined_count; ++i) {
      if (tensors[i].requires_grad()) tensors[i] = tensors[i].detach().requires_grad_();
    }

    const BufferGuard buffers(saved->buffers);
    Tensors outputs;
    const std::uint64_t begin = at::sequence_number::peek();
    {
      const RandomGuard random(saved->random);
      const AutocastGuard autocast(saved->autocast);
      const torch::AutoGradMode with_gradients(true);
      outputs = saved->function(saved->inputs_of(tensors));
    }
    check_same(saved->outputs, describe(outputs, saved->check_outputs));

    Tensors roots, root_gradients, leaves;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!gradients[i].defined() || !outputs[i].requires_grad()) continue;
      roots.push_back(outputs[i]);
      root_gradients.push_back(gradients[i]);
    }
    Tensors result(1 + tensors.size());  // the first belongs to `saved`
    if (roots.empty() || wanted.empty()) return result;
    check_graph(roots, tensors, begin);
    for (std::size_t i : wanted) leaves.push_back(tensors[i]);
    const WithoutGradientHooks none(leaves);  // the outer pass will run them
    Tensors found = torch::autograd::grad(roots, leaves, root_gradients, /*retain_graph=*/false, /*create_graph=*/false,
                                          /*allow_unused=*/true);
    for (std::size_t i = 0; i < wanted.size(); ++i) result[1 + wanted[i]] = std::move(found[i]);
    return result;
  }
};

}  // namespace

std::vector<torch::Tensor> checkpoint(const torch::nn::Module& module, const CheckpointListFunction& function,
                                      const std::vector<torch::Tensor>& inputs, const CheckpointOptions& options) {
  if (!torch::GradMode::is_enabled()) return function(inputs);
  auto saved = c10::make_intrusive<Saved>();
  Tensors tensors;
  bool any_gradient = false;
  for (const torch::Tensor& input : inputs) {
    saved->defined.push_back(input.defined());
    if (!input.defined()) continue;
    tensors.push_back(input);
    any_gradient |= input.requires_grad();
  }
  saved->defined_count = tensors.size();
  for (const NamedTensor& parameter : parameters_of(module)) {
    if (!parameter.tensor.requires_grad()) continue;
    tensors.push_back(parameter.tensor);
    any_gradient = true;
  }
  if (!any_gradient) return function(inputs);

  std::set<torch::DeviceType> kinds{torch::kCPU};
  std::set<std::pair<torch::DeviceType, c10::DeviceIndex>> devices{{torch::kCPU, -1}};
  for (const torch::Tensor& tensor : tensors) {
    if (tensor.is_cpu() || tensor.is_meta()) continue;
    kinds.insert(tensor.device().type());
    devices.emplace(tensor.device().type(), tensor.device().index());
  }
  std::vector<at::Generator> generators = options.generators;
  if (options.default_generators) {
    for (const auto& [kind, index] : devices) {
      generators.push_back(at::globalContext().defaultGenerator(torch::Device(kind, index)));
    }
  }
  saved->function = function;
  saved->buffers = module.buffers();
  saved->random = RandomState(std::move(generators));
  saved->autocast = AutocastState(kinds);
  saved->check_outputs = options.check_outputs;
  const at::TensorList list = tensors;
  return Recompute::apply(std::move(saved), list);
}

torch::Tensor checkpoint(const torch::nn::Module& module, const CheckpointFunction& function,
                         const torch::Tensor& input, const CheckpointOptions& options) {
  const CheckpointListFunction as_list = [function](const Tensors& inputs) {
    return Tensors{function(inputs.front())};
  };
  return checkpoint(module, as_list, Tensors{input}, options).front();
}

}  // namespace tutti::training
