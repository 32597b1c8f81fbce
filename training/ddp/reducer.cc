#include "training/ddp/reducer.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <utility>

#include "training/abort.h"

namespace tutti::training {
namespace {

using Clock = std::chrono::steady_clock;

class Mean : public CommunicationHook {
 public:
  explicit Mean(bool deterministic) { call_.deterministic = deterministic; }
  Work start(Communicator& communicator, GradientBucket& bucket) override {
    void* own = bucket.gradients.data_ptr();
    return communicator.all_reduce_async(own, own, count_of(bucket.gradients), *floating_type_of(bucket.gradients),
                                         ReduceOp::avg, in_stream_of(bucket.gradients, call_));
  }

 private:
  CallOptions call_;
};

/// Returns memory for a bucket, on the device of its parameters; on the CPU registered.
std::shared_ptr<void> bucket_memory(std::size_t bytes, c10::Device device) {
  if (device.is_cpu()) return {allocate(bytes), deallocate};
  const torch::Tensor memory =
      torch::empty({static_cast<std::int64_t>(bytes)}, torch::dtype(torch::kUInt8).device(device));
  return {memory.data_ptr(), [memory](void*) {}};
}

std::vector<torch::Tensor> tensors_of(const std::vector<NamedTensor>& items) {
  std::vector<torch::Tensor> tensors;
  for (const NamedTensor& item : items) tensors.push_back(item.tensor);
  return tensors;
}

}  // namespace

class Reducer::Hook : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(Reducer* reducer, std::size_t parameter) : reducer_(reducer), parameter_(parameter) {}
  void operator()(const torch::Tensor&) override {
    or_abort(reducer_->comm_, "DistributedDataParallel", [&] { reducer_->on_gradient(parameter_); });
  }

 private:
  Reducer* reducer_;
  std::size_t parameter_;
};

Reducer::Reducer(std::vector<NamedTensor> trained, Communicator communicator, const DdpOptions& options,
                 std::function<void()> before_pass, std::function<void()> after_pass)
    : comm_(std::move(communicator)),
      unused_mode_(options.unused),
      before_pass_(std::move(before_pass)),
      after_pass_(std::move(after_pass)),
      steps_(comm_, tensors_of(trained)) {
  hook_ = options.hook ? options.hook() : std::make_unique<Mean>(options.deterministic);
  for (NamedTensor& item : trained) {
    if (torch::autograd::impl::post_acc_grad_hooks(item.tensor) != nullptr) {
      fail(fmt::format("parameter '{}' has a gradient hook already (of another DistributedDataParallel?)", item.name));
    }
    parameters_.push_back({.item = std::move(item)});
  }
  make_buckets(options);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameters_[i].item.tensor, std::make_unique<Hook>(this, i));
  }
}

Reducer::~Reducer() {
  for (Parameter& parameter : parameters_) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameter.item.tensor, nullptr);
  }
  drain();
}

// The others wait, or will, in an exchange that this rank never joins.
void Reducer::fail(const std::string& what) const { fail_on_all(comm_, "DistributedDataParallel: " + what); }

void Reducer::make_buckets(const DdpOptions& options) {
  std::vector<BucketParameter> plan;
  for (const Parameter& parameter : parameters_) {
    const torch::Tensor& tensor = parameter.item.tensor;
    const std::optional<DataType> type = floating_type_of(tensor);
    if (!type) {
      fail(fmt::format("parameter '{}' is of type {}; gradients can be f32, f64, f16 or bf16", parameter.item.name,
                       c10::toString(tensor.scalar_type())));
    }
    plan.push_back({count_of(tensor), *type});
  }
  layout_ = plan_buckets(plan, options.first_bucket_bytes, options.bucket_bytes);
  for (std::size_t b = 0; b < layout_.size(); ++b) {
    const c10::Device device = parameters_[layout_[b].slices.front().parameter].item.tensor.device();
    const std::shared_ptr<void> memory = bucket_memory(layout_[b].bytes(), device);
    // Tensors of their own rather than torch's views of one: torch::optim's zero_grad(false) refuses views. Each
    // keeps the bucket's memory alive.
    const auto keep = [memory](void*) {};
    torch::ScalarType type{};
    for (const BucketSlice& slice : layout_[b].slices) {
      Parameter& parameter = parameters_[slice.parameter];
      const torch::Tensor& tensor = parameter.item.tensor;
      type = tensor.scalar_type();
      parameter.bucket = b;
      parameter.gradient =
          torch::from_blob(static_cast<std::byte*>(memory.get()) + slice.offset * size_of(layout_[b].type),
                           tensor.sizes(), tensor.strides(), keep, torch::dtype(type).device(device));
    }
    const auto elements = static_cast<std::int64_t>(layout_[b].elements);
    const auto options = torch::dtype(type).device(device);
    live_.push_back({memory, {b, torch::from_blob(memory.get(), {elements}, keep, options)}, 0, {}});
  }
  clear_gradients();
}

void Reducer::zero_grad() {
  steps_.on_zero_grad();
  clear_gradients();
}

void Reducer::clear_gradients() {
  for (LiveBucket& bucket : live_) bucket.view.gradients.zero_();
  for (Parameter& parameter : parameters_) {
    if (parameter.gradient.defined()) parameter.item.tensor.mutable_grad() = parameter.gradient;
  }
}

// Called behind each gradient, on the thread that runs backward.
void Reducer::on_gradient(std::size_t index) {
  Parameter& parameter = parameters_[index];
  if (!parameter.gradient.defined()) return;  // no elements
  if (!parameter.used) look_at_gradient(parameter, /*additions=*/1);
  take_gradient(parameter);
  parameter.used = true;
  if (no_sync_depth_ > 0) return;
  steps_.on_gradient();

  const int task = torch::autograd::get_current_graph_task_id();
  if (!pass_open_) {
    open_pass(task);
  } else if (task != pass_task_) {
    fail(
        fmt::format("parameter '{}' got a gradient in a backward pass that began before the previous one ended (that "
                    "one threw, or this one runs inside it)",
                    parameter.item.name));
  }
  if (unused_are_known_ && parameter.unused_in_pass) {
    fail(
        fmt::format("parameter '{}' got a gradient, and got none in the first backward pass; with "
                    "UnusedParameters::fixed the same parameters must be used in every pass",
                    parameter.item.name));
  }
  if (parameter.ready) fail(fmt::format("parameter '{}' got two gradients in one backward pass", parameter.item.name));
  mark_ready(parameter);
  start_complete_buckets();
}

// Whether the caller zeroed it since the last exchange: it was set to none, or changed in place. A parameter that no
// rank used may have none all the same.
void Reducer::look_at_gradient(const Parameter& parameter, std::uint64_t additions) {
  if (!parameter.gradient.defined() || parameter.unused_everywhere) return;
  const bool is_own = parameter.item.tensor.grad().is_same(parameter.gradient);
  if (!is_own || parameter.gradient._version() != parameter.version + additions) steps_.on_touched_gradient();
}

// Into its bucket, where it does not lie there already.
void Reducer::take_gradient(Parameter& parameter) {
  torch::Tensor& gradient = parameter.item.tensor.mutable_grad();
  if (torch::GradMode::is_enabled()) {
    fail(fmt::format(
        "parameter '{}': backward with create_graph is not supported; the mean of gradients has no derivative",
        parameter.item.name));
  }
  if (gradient.is_same(parameter.gradient)) return;
  if (gradient.layout() != torch::kStrided) {
    fail(fmt::format(
        "parameter '{}' got a {} gradient; expected a dense one (Embedding: EmbeddingOptions::sparse(false))",
        parameter.item.name, c10::str(gradient.layout())));
  }
  if (gradient.scalar_type() != parameter.gradient.scalar_type() || gradient.sizes() != parameter.gradient.sizes() ||
      gradient.device() != parameter.gradient.device()) {
    before_pass_();  // names what has changed
  }
  torch::NoGradGuard no_grad;
  parameter.gradient.copy_(gradient);
  gradient = parameter.gradient;
}

// What every pass that communicates begins with, on every rank.
void Reducer::begin_pass() {
  before_pass_();
  for (const Parameter& parameter : parameters_) {
    if (!parameter.used) look_at_gradient(parameter, /*additions=*/0);
  }
  steps_.start(!shadow_);
}

void Reducer::open_pass(int task) {
  pass_open_ = true;
  pass_task_ = task;
  next_ = 0;
  for (std::size_t b = 0; b < live_.size(); ++b) live_[b].pending = layout_[b].slices.size();
  for (Parameter& parameter : parameters_) parameter.ready = false;
  begin_pass();
  if (unused_are_known_) take_unused();
  torch::autograd::Engine::get_default_engine().queue_callback([this] { close_pass(); });
}

void Reducer::mark_ready(Parameter& parameter) {
  parameter.ready = true;
  --live_[parameter.bucket].pending;
}

void Reducer::start_complete_buckets() {
  for (; next_ < live_.size() && live_[next_].pending == 0; ++next_) {
    GradientBucket& bucket = live_[next_].view;
    live_[next_].work = side_.start(bucket.gradients.device(), [&] { return hook_->start(comm_, bucket); });
    stats_.reductions += 1;
    stats_.bytes += layout_[next_].bytes();
  }
}

// Parameters that got gradients in earlier micro-batches of the step alone.
void Reducer::take_used_before() {
  for (Parameter& parameter : parameters_) {
    if (!parameter.ready && parameter.used && parameter.gradient.defined()) mark_ready(parameter);
  }
  start_complete_buckets();
}

// Parameters that get no gradient in this pass go with what they have: what micro-batches before it left, or zero.
void Reducer::take_unused() {
  for (Parameter& parameter : parameters_) {
    if (parameter.ready || !parameter.gradient.defined()) continue;
    if (unused_are_known_ && !parameter.unused_in_pass) continue;
    if (!parameter.item.tensor.grad().defined()) parameter.gradient.zero_();
    mark_ready(parameter);
  }
}

// What no rank used keeps the gradient that it had, none if it had none: as in one process. What others used has one.
void Reducer::give_back_unused() {
  if (!unused_everywhere_is_known_) {
    std::vector<std::uint8_t> used;
    for (const Parameter& parameter : parameters_) used.push_back(parameter.used ? 1 : 0);
    comm_.all_reduce(used.data(), used.data(), used.size(), DataType::u8, ReduceOp::max);
    for (std::size_t i = 0; i < used.size(); ++i) parameters_[i].unused_everywhere = used[i] == 0;
  }
  for (Parameter& parameter : parameters_) {
    if (!unused_are_known_ && !shadow_) parameter.unused_in_pass = !parameter.used;
    if (parameter.gradient.defined() && !parameter.unused_everywhere) {
      parameter.item.tensor.mutable_grad() = parameter.gradient;
    }
  }
  if (unused_mode_ != UnusedParameters::fixed) return;
  unused_everywhere_is_known_ = true;
  unused_are_known_ = unused_are_known_ || !shadow_;
}

// At the end of backward, on the thread that called it.
void Reducer::close_pass() {
  if (next_ < live_.size()) take_used_before();
  if (next_ < live_.size()) {
    if (unused_mode_ == UnusedParameters::refuse || unused_are_known_) fail_for_missing_gradients();
    take_unused();
    start_complete_buckets();
  }
  const Clock::time_point begin = Clock::now();
  for (LiveBucket& bucket : live_) {
    bucket.work.wait();
    bucket.work = {};
    hook_->finish(bucket.view);
  }
  check_steps();
  if (unused_mode_ != UnusedParameters::refuse) give_back_unused();
  for (Parameter& parameter : parameters_) {
    parameter.used = false;
    if (parameter.gradient.defined()) parameter.version = static_cast<std::uint64_t>(parameter.gradient._version());
  }
  if (after_pass_) after_pass_();
  stats_.wait_seconds += std::chrono::duration<double>(Clock::now() - begin).count();
  stats_.passes += 1;
  pass_open_ = false;
}

// All ranks find the same.
void Reducer::check_steps() {
  const std::string difference = steps_.finish();
  if (difference.empty()) return;
  const std::string message = fmt::format("DistributedDataParallel: {}", difference);
  comm_.abort(message);
  throw Error(Code::mismatch, message);
}

void Reducer::shadow_pass() {
  clear_gradients();
  shadow_ = true;
  pass_without_backward();
  shadow_ = false;
}

void Reducer::average_now() {
  torch::NoGradGuard no_grad;
  steps_.on_gradient();
  for (Parameter& parameter : parameters_) {
    if (!parameter.gradient.defined()) continue;
    torch::Tensor& gradient = parameter.item.tensor.mutable_grad();
    if (gradient.defined()) {
      take_gradient(parameter);
    } else {
      parameter.gradient.zero_();
      gradient = parameter.gradient;
    }
  }
  pass_without_backward();
}

void Reducer::pass_without_backward() {
  next_ = 0;
  for (LiveBucket& bucket : live_) bucket.pending = 0;
  begin_pass();
  start_complete_buckets();
  close_pass();
}

std::vector<std::string> Reducer::unused() const {
  std::vector<std::string> names;
  for (const Parameter& parameter : parameters_) {
    if (parameter.unused_in_pass && parameter.gradient.defined()) names.push_back(parameter.item.name);
  }
  return names;
}

void Reducer::fail_for_missing_gradients() {
  const Parameter* first = nullptr;
  std::size_t missing = 0;
  for (const Parameter& parameter : parameters_) {
    if (parameter.ready || !parameter.gradient.defined()) continue;
    if (first == nullptr) first = &parameter;
    ++missing;
  }
  const std::string advice =
      unused_are_known_
          ? "it got one in the first, and with UnusedParameters::fixed the same parameters must be used in every pass"
          : "every trained parameter must take part in the loss on every rank (freeze it with requires_grad_(false), "
            "or "
            "set DdpOptions::unused)";
  fail(fmt::format("parameter '{}'{} got no gradient in this backward pass; {}", first->item.name,
                   missing > 1 ? fmt::format(" and {} more", missing - 1) : "", advice));
}

// Buckets must not be freed under an operation that still writes to them.
void Reducer::drain() noexcept {
  for (LiveBucket& bucket : live_) {
    try {
      if (bucket.work) bucket.work.wait();
    } catch (const std::exception&) {
      // The operation has ended, which is all that matters here; its error was or will be seen by another call.
    }
  }
}

}  // namespace tutti::training
