#include "training/ddp.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <chrono>
#include <cstring>
#include <string>
#include <unordered_set>
#include <utility>

#include "training/hash.h"

namespace tutti::training {
namespace {

using Clock = std::chrono::steady_clock;

struct NamedTensor {
  std::string name;
  torch::Tensor tensor;
};

/// A tensor registered under two names (tied weights) comes once, under its first name.
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

[[noreturn]] void fail(int rank, const std::string& what) {
  throw Error(Code::invalid_argument, fmt::format("rank {}: DistributedDataParallel: {}", rank, what));
}

DataType data_type_of(int rank, const NamedTensor& parameter) {
  switch (parameter.tensor.scalar_type()) {
    case torch::kFloat32: return DataType::f32;
    case torch::kFloat64: return DataType::f64;
    case torch::kFloat16: return DataType::f16;
    case torch::kBFloat16: return DataType::bf16;
    default:
      fail(rank, fmt::format("parameter '{}' is of type {}; gradients can be f32, f64, f16 or bf16", parameter.name,
                             c10::toString(parameter.tensor.scalar_type())));
  }
}

/// What must be the same on all ranks before bytes can be exchanged.
std::string description_of(const NamedTensor& item) {
  std::string text = fmt::format("{} {} {}", item.name, c10::toString(item.tensor.scalar_type()),
                                 item.tensor.requires_grad() ? "trained" : "frozen");
  for (std::int64_t extent : item.tensor.sizes()) text += fmt::format(" {}", extent);
  for (std::int64_t stride : item.tensor.strides()) text += fmt::format(",{}", stride);
  return text;
}

}  // namespace

struct DistributedDataParallel::State {
  struct Parameter {
    NamedTensor item;
    torch::Tensor gradient;  // lies in its bucket
    std::size_t bucket = 0;
    bool ready = false;  // in the pass under way
  };
  struct LiveBucket {
    std::shared_ptr<void> memory;
    std::size_t pending = 0;  // gradients still missing in the pass under way
    Work work;
  };

  State(torch::nn::Module& module, Communicator communicator, const DdpOptions& options)
      : comm(std::move(communicator)), rank(comm.rank()), deterministic(options.deterministic) {
    shared = without_repeats(module.named_parameters());
    parameters_shared = shared.size();
    for (NamedTensor& buffer : without_repeats(module.named_buffers())) shared.push_back(std::move(buffer));
    for (const NamedTensor& item : shared) check_usable(item);
    check_same_model();
    broadcast(0);
    check_equal();
    make_buckets(options);
  }

  void check_usable(const NamedTensor& item) const {
    if (!item.tensor.device().is_cpu() || item.tensor.layout() != torch::kStrided) {
      fail(rank,
           fmt::format("'{}' is on {}; only dense CPU tensors can be used", item.name, item.tensor.device().str()));
    }
    if (!item.tensor.is_non_overlapping_and_dense()) {
      fail(rank, fmt::format("'{}' has gaps or overlaps in its memory; make it contiguous", item.name));
    }
  }

  /// `values` has one entry for each shared tensor. On all ranks: the first entry in which a rank differs from rank 0.
  void compare(const std::vector<std::uint64_t>& values, const char* difference) {
    const auto size = static_cast<std::size_t>(comm.size());
    std::vector<std::uint64_t> all(values.size() * size);
    comm.all_gather(values.data(), all.data(), values.size(), DataType::u64);
    for (std::size_t i = 0; i < values.size(); ++i) {
      for (std::size_t other = 1; other < size; ++other) {
        if (all[other * values.size() + i] == all[i]) continue;
        throw Error(Code::invalid_argument, fmt::format("DistributedDataParallel: '{}' {} on rank {} and on rank 0",
                                                        shared[i].name, difference, other));
      }
    }
  }

  void check_same_model() {
    const std::uint64_t count = shared.size();
    std::vector<std::uint64_t> counts(static_cast<std::size_t>(comm.size()));
    comm.all_gather(&count, counts.data(), 1, DataType::u64);
    for (std::size_t other = 1; other < counts.size(); ++other) {
      if (counts[other] == counts[0]) continue;
      throw Error(
          Code::invalid_argument,
          fmt::format("DistributedDataParallel: the model of rank {} has {} parameters and buffers, that of rank 0 "
                      "has {}",
                      other, counts[other], counts[0]));
    }
    std::vector<std::uint64_t> hashes;
    for (const NamedTensor& item : shared) {
      const std::string text = description_of(item);
      hashes.push_back(ByteHash::of(text.data(), text.size()));
    }
    compare(hashes, "differs in name, type, shape or requires_grad");
  }

  void check_equal() {
    std::vector<std::uint64_t> hashes;
    for (const NamedTensor& item : shared) hashes.push_back(ByteHash::of(item.tensor.data_ptr(), item.tensor.nbytes()));
    compare(hashes, "holds different values");
  }

  void broadcast(std::size_t first) {
    for (std::size_t i = first; i < shared.size(); ++i) {
      torch::Tensor& tensor = shared[i].tensor;
      if (tensor.nbytes() > 0) comm.broadcast(tensor.data_ptr(), tensor.data_ptr(), tensor.nbytes(), DataType::u8, 0);
    }
  }

  void make_buckets(const DdpOptions& options) {
    std::vector<BucketParameter> plan;
    for (std::size_t i = 0; i < parameters_shared; ++i) {
      const NamedTensor& item = shared[i];
      if (!item.tensor.requires_grad()) continue;
      if (torch::autograd::impl::post_acc_grad_hooks(item.tensor) != nullptr) {
        fail(rank, fmt::format("parameter '{}' has a gradient hook already (of another DistributedDataParallel?)",
                               item.name));
      }
      plan.push_back({static_cast<std::size_t>(item.tensor.numel()), data_type_of(rank, item)});
      parameters.push_back({item, {}, 0, false});
    }
    layout = plan_buckets(plan, options.first_bucket_bytes, options.bucket_bytes);
    for (std::size_t b = 0; b < layout.size(); ++b) {
      const std::shared_ptr<void> memory(allocate(layout[b].bytes()), deallocate);
      // Tensors of their own rather than torch's views of one: torch::optim's zero_grad(false) refuses views. Each
      // keeps the bucket's memory alive.
      const auto keep = [memory](void*) {};
      for (const BucketSlice& slice : layout[b].slices) {
        Parameter& parameter = parameters[slice.parameter];
        const torch::Tensor& tensor = parameter.item.tensor;
        parameter.bucket = b;
        parameter.gradient =
            torch::from_blob(static_cast<std::byte*>(memory.get()) + slice.offset * size_of(layout[b].type),
                             tensor.sizes(), tensor.strides(), keep, tensor.scalar_type());
      }
      live.push_back({memory, 0, {}});
    }
    zero_grad();
  }

  void zero_grad() {
    for (std::size_t b = 0; b < live.size(); ++b) std::memset(live[b].memory.get(), 0, layout[b].bytes());
    for (Parameter& parameter : parameters) {
      if (parameter.gradient.defined()) parameter.item.tensor.mutable_grad() = parameter.gradient;
    }
  }

  // Called behind each gradient, on the thread that runs backward.
  void on_gradient(std::size_t index) {
    Parameter& parameter = parameters[index];
    if (!parameter.gradient.defined()) return;  // no elements
    torch::Tensor& gradient = parameter.item.tensor.mutable_grad();
    if (!gradient.is_same(parameter.gradient)) {  // it was none, or backward builds a graph
      torch::NoGradGuard no_grad;
      parameter.gradient.copy_(gradient);
      gradient = parameter.gradient;
    }
    if (no_sync_depth > 0) return;

    const int task = torch::autograd::get_current_graph_task_id();
    if (!pass_open) {
      open_pass(task);
    } else if (task != pass_task) {
      fail(rank,
           fmt::format("parameter '{}' got a gradient in a backward pass that began before the previous one ended "
                       "(that one threw, or this one runs inside it)",
                       parameter.item.name));
    }
    if (std::exchange(parameter.ready, true)) {
      fail(rank, fmt::format("parameter '{}' got two gradients in one backward pass", parameter.item.name));
    }
    --live[parameter.bucket].pending;
    for (; next < live.size() && live[next].pending == 0; ++next) start(next);
  }

  void open_pass(int task) {
    pass_open = true;
    pass_task = task;
    next = 0;
    for (std::size_t b = 0; b < live.size(); ++b) live[b].pending = layout[b].slices.size();
    for (Parameter& parameter : parameters) parameter.ready = false;
    torch::autograd::Engine::get_default_engine().queue_callback([this] { close_pass(); });
  }

  void start(std::size_t b) {
    CallOptions call;
    call.deterministic = deterministic;
    void* memory = live[b].memory.get();
    live[b].work = comm.all_reduce_async(memory, memory, layout[b].elements, layout[b].type, ReduceOp::avg, call);
    stats.reductions += 1;
    stats.bytes += layout[b].bytes();
  }

  // At the end of backward, on the thread that called it.
  void close_pass() {
    if (next < live.size()) fail_for_missing_gradients();
    const Clock::time_point begin = Clock::now();
    for (LiveBucket& bucket : live) {
      bucket.work.wait();
      bucket.work = {};
    }
    stats.wait_seconds += std::chrono::duration<double>(Clock::now() - begin).count();
    stats.passes += 1;
    pass_open = false;
  }

  [[noreturn]] void fail_for_missing_gradients() {
    const Parameter* first = nullptr;
    std::size_t missing = 0;
    for (const Parameter& parameter : parameters) {
      if (parameter.ready || !parameter.gradient.defined()) continue;
      if (first == nullptr) first = &parameter;
      ++missing;
    }
    const std::string message = fmt::format(
        "rank {}: DistributedDataParallel: parameter '{}'{} got no gradient in this backward pass; every trained "
        "parameter must take part in the loss on every rank (freeze it with requires_grad_(false) if it is not used)",
        rank, first->item.name, missing > 1 ? fmt::format(" and {} more", missing - 1) : "");
    comm.abort(message);  // the others are waiting in an all-reduce that this rank will never join
    throw Error(Code::invalid_argument, message);
  }

  /// Buckets must not be freed under an operation that still writes to them.
  void drain() noexcept {
    for (LiveBucket& bucket : live) {
      try {
        if (bucket.work) bucket.work.wait();
      } catch (const std::exception&) {
        // The operation has ended, which is all that matters here; its error was or will be seen by another call.
      }
    }
  }

  Communicator comm;
  const int rank;
  const bool deterministic;
  std::vector<NamedTensor> shared;    // parameters, then buffers
  std::size_t parameters_shared = 0;  // how many of them are parameters
  std::vector<Parameter> parameters;  // the trained ones, in order of registration
  std::vector<Bucket> layout;
  std::vector<LiveBucket> live;
  int no_sync_depth = 0;
  bool pass_open = false;
  int pass_task = -1;    // the engine's number of the backward pass under way
  std::size_t next = 0;  // first bucket not started in it
  DdpStats stats;
};

class DistributedDataParallel::Hook : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(State* state, std::size_t parameter) : state_(state), parameter_(parameter) {}
  void operator()(const torch::Tensor&) override { state_->on_gradient(parameter_); }

 private:
  State* state_;
  std::size_t parameter_;
};

DistributedDataParallel::DistributedDataParallel(torch::nn::Module& module, Communicator communicator,
                                                 const DdpOptions& options)
    : state_(std::make_unique<State>(module, std::move(communicator), options)) {
  for (std::size_t i = 0; i < state_->parameters.size(); ++i) {
    torch::autograd::impl::set_post_acc_grad_hooks(state_->parameters[i].item.tensor,
                                                   std::make_unique<Hook>(state_.get(), i));
  }
}

DistributedDataParallel::~DistributedDataParallel() {
  for (State::Parameter& parameter : state_->parameters) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameter.item.tensor, nullptr);
  }
  state_->drain();
}

DistributedDataParallel::NoSync DistributedDataParallel::no_sync() { return NoSync(&state_->no_sync_depth); }
void DistributedDataParallel::zero_grad() { state_->zero_grad(); }
void DistributedDataParallel::broadcast_buffers() { state_->broadcast(state_->parameters_shared); }
void DistributedDataParallel::check_equal() { state_->check_equal(); }
const std::vector<Bucket>& DistributedDataParallel::buckets() const { return state_->layout; }
DdpStats DistributedDataParallel::stats() const { return state_->stats; }

}  // namespace tutti::training
