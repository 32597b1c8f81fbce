#include "training/fsdp/fsdp.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>
#include <unordered_map>
#include <utility>

#include "training/abort.h"
#include "training/ddp/replicas.h"
#include "training/fsdp/gradient_pass.h"
#include "training/fsdp/unit.h"
#include "training/fsdp/unit_turns.h"

namespace tutti::training {

struct FullyShardedDataParallel::State {
  State(torch::nn::Module& module, Communicator communicator, const FsdpOptions& given);

  void check(const NamedTensor& item) const;
  void add_unit(UnitParameters plan);
  [[noreturn]] void fail(const std::string& what) const;
  torch::Tensor whole(std::size_t index, bool gradient);

  template <class Visit>
  void for_each_parameter(Visit&& visit) const {
    for (const auto& [unit, place] : registration) visit(*units[unit]->parameters()[place]);
  }

  FsdpOptions options;
  Communicator comm, reductions;  // reductions: of their own, so that gradients travel while parameters do
  std::vector<std::unique_ptr<Unit>> units;
  std::vector<std::pair<std::size_t, std::size_t>> registration;  // the order of parameters: unit and place in it
  std::unique_ptr<UnitTurns> turns;
  std::unique_ptr<GradientPass> pass;
};

FullyShardedDataParallel::State::State(torch::nn::Module& module, Communicator communicator, const FsdpOptions& given)
    : options(given), comm(std::move(communicator)) {
  if (options.prefetch < 0) fail(fmt::format("prefetch is {}; expected 0 or more", options.prefetch));
  const std::vector<NamedTensor> all = parameters_of(module);
  for (const NamedTensor& item : all) check(item);
  // Replicas give all ranks rank 0's values, and check that all have the same model.
  if (options.values == Values::rank_0) {
    if (options.replicas) Replicas(module, options.replicas);
    Replicas(module, comm);
  }
  reductions = comm.split(0, comm.rank());

  std::unordered_map<std::string, std::pair<std::size_t, std::size_t>> place;
  for (UnitParameters& plan : plan_units(module, options.units)) {
    for (std::size_t i = 0; i < plan.parameters.size(); ++i) place[plan.parameters[i].name] = {units.size(), i};
    add_unit(std::move(plan));
  }
  for (const NamedTensor& item : all) registration.push_back(place.at(item.name));
  turns = std::make_unique<UnitTurns>(units, UnitTurns::Options{.gives_up = options.sharding == Sharding::zero3,
                                                                .after_forward = options.reshard != Reshard::never,
                                                                .root_takes_turns = options.reshard == Reshard::always,
                                                                .prefetch = options.prefetch});
  pass = std::make_unique<GradientPass>(
      units, *turns, reductions, options.replicas, options.allow_unused, [this](const std::string& what) {
        // The others wait, or will, in a call that this rank never makes.
        fail_on_all(std::vector{comm, reductions}, "FullyShardedDataParallel: " + what);
      });
}

void FullyShardedDataParallel::State::fail(const std::string& what) const {
  throw Error(Code::invalid_argument, fmt::format("rank {}: FullyShardedDataParallel: {}", comm.rank(), what));
}

void FullyShardedDataParallel::State::check(const NamedTensor& item) const {
  const torch::Tensor& tensor = item.tensor;
  if (!tensor.device().is_cpu() || tensor.layout() != torch::kStrided || !floating_type_of(tensor)) {
    fail(fmt::format("parameter '{}' is a {} of {} on {}; expected a dense f32, f64, f16 or bf16 tensor on the CPU",
                     item.name, c10::str(tensor.layout()), c10::toString(tensor.scalar_type()), tensor.device().str()));
  }
  if (!tensor.is_contiguous()) fail(fmt::format("parameter '{}' is not contiguous", item.name));
  if (torch::autograd::impl::post_acc_grad_hooks(tensor) != nullptr) {
    fail(
        fmt::format("parameter '{}' has a gradient hook already (of another FullyShardedDataParallel or a "
                    "DistributedDataParallel?)",
                    item.name));
  }
}

void FullyShardedDataParallel::State::add_unit(UnitParameters plan) {
  std::vector<std::unique_ptr<ShardedParameter>> parameters;
  for (NamedTensor& item : plan.parameters) {
    const torch::ScalarType type = options.compute_type.value_or(item.tensor.scalar_type());
    parameters.push_back(std::make_unique<ShardedParameter>(std::move(item), comm.rank(), comm.size(), type,
                                                            options.sharding != Sharding::zero3));
  }
  CallOptions call;
  call.deterministic = options.deterministic;
  units.push_back(
      std::make_unique<Unit>(plan.name, std::move(parameters), comm, reductions,
                             Unit::Options{options.sharding == Sharding::zero1, options.reduce_type, std::move(call)}));
}

FullyShardedDataParallel::FullyShardedDataParallel(torch::nn::Module& module, Communicator communicator,
                                                   const FsdpOptions& options)
    : state_(std::make_unique<State>(module, std::move(communicator), options)) {}
FullyShardedDataParallel::~FullyShardedDataParallel() = default;

std::vector<torch::Tensor> FullyShardedDataParallel::parameters() const {
  std::vector<torch::Tensor> shards;
  state_->for_each_parameter([&](ShardedParameter& parameter) { shards.push_back(parameter.shard()); });
  return shards;
}

std::vector<NamedTensor> FullyShardedDataParallel::named_parameters() const {
  std::vector<NamedTensor> shards;
  state_->for_each_parameter([&](ShardedParameter& parameter) {
    shards.push_back({parameter.name(), parameter.shard()});
  });
  return shards;
}

void FullyShardedDataParallel::zero_grad() {
  state_->for_each_parameter([](ShardedParameter& parameter) {
    parameter.drop_gradient();
    parameter.whole().mutable_grad().reset();
  });
}

FullyShardedDataParallel::NoSync FullyShardedDataParallel::no_sync() { return NoSync(state_->pass->no_sync_depth()); }

double FullyShardedDataParallel::grad_norm() {
  double sum = 0;
  const torch::NoGradGuard no_grad;
  state_->for_each_parameter([&](ShardedParameter& parameter) {
    const torch::Tensor& gradient = parameter.shard().grad();
    if (gradient.defined()) sum += gradient.to(torch::kFloat64).square().sum().item<double>();
  });
  state_->comm.all_reduce(&sum, &sum, 1, DataType::f64);
  return std::sqrt(sum);
}

double FullyShardedDataParallel::clip_grad_norm(double largest) {
  const double norm = grad_norm();
  // As torch::nn::utils::clip_grad_norm_.
  const double factor = largest / (norm + 1e-6);
  if (factor < 1) {
    state_->for_each_parameter([&](ShardedParameter& parameter) {
      torch::Tensor& gradient = parameter.shard().mutable_grad();
      if (gradient.defined()) gradient.mul_(factor);
    });
  }
  return norm;
}

FullyShardedDataParallel::FullParameters FullyShardedDataParallel::summon_full_parameters(bool write_back) {
  State& state = *state_;
  if (state.turns->holds()) state.fail("summon_full_parameters: the parameters are whole already");
  if (state.pass->is_open()) state.fail("summon_full_parameters: called during backward");
  if (write_back) {
    state.for_each_parameter([&](ShardedParameter& parameter) {
      if (parameter.type() == parameter.compute_type()) return;
      state.fail(
          fmt::format("summon_full_parameters: write_back would round the shard of parameter '{}' to {}; write "
                      "to the shard itself",
                      parameter.name(), c10::toString(parameter.compute_type())));
    });
  }
  state.turns->hold_all();
  return FullParameters(this, write_back);
}

FullyShardedDataParallel::FullParameters::~FullParameters() {
  if (owner_ == nullptr) return;
  State& state = *owner_->state_;
  if (write_back_) {
    const torch::NoGradGuard no_grad;
    state.for_each_parameter([&](ShardedParameter& parameter) {
      const RowLayout& layout = parameter.layout();
      torch::Tensor own = parameter.shard().view({-1});
      own.copy_(parameter.flat().narrow(0, layout.first * layout.row_elements, own.numel()));
    });
  }
  state.turns->release_all();
}

torch::Tensor FullyShardedDataParallel::State::whole(std::size_t index, bool gradient) {
  const auto [unit, place] = registration.at(index);
  ShardedParameter& parameter = *units[unit]->parameters()[place];
  const torch::Tensor rows = gradient ? parameter.shard().grad() : parameter.shard().detach();
  if (!rows.defined()) fail(fmt::format("whole_gradient: parameter '{}' has no gradient", parameter.name()));
  torch::Tensor own = torch::zeros({parameter.layout().piece()}, rows.options());
  own.narrow(0, 0, rows.numel()).copy_(rows.view({-1}));
  torch::Tensor all = torch::empty({own.numel() * comm.size()}, own.options());
  comm.all_gather(own.data_ptr(), all.data_ptr(), static_cast<std::size_t>(own.numel()), *floating_type_of(own));
  return all.narrow(0, 0, parameter.whole().numel()).view(parameter.whole().sizes());
}

torch::Tensor FullyShardedDataParallel::whole_parameter(std::size_t index) { return state_->whole(index, false); }
torch::Tensor FullyShardedDataParallel::whole_gradient(std::size_t index) { return state_->whole(index, true); }

std::vector<std::string> FullyShardedDataParallel::units() const {
  std::vector<std::string> names = {""};
  for (const std::size_t index : state_->turns->order()) names.push_back(state_->units[index]->name());
  return names;
}

FsdpMemory FullyShardedDataParallel::memory() const {
  FsdpMemory memory;
  state_->for_each_parameter([&](ShardedParameter& parameter) {
    memory.shards += parameter.lies_in_whole() ? parameter.whole_bytes() : parameter.shard_bytes();
    memory.gradients += parameter.gradient_bytes();
    const auto own_elements = static_cast<std::size_t>(parameter.layout().own * parameter.layout().row_elements);
    memory.padding += parameter.lies_in_whole()
                          ? static_cast<std::size_t>(parameter.layout().padding()) * parameter.whole().element_size()
                          : parameter.shard_bytes() - own_elements * parameter.shard().element_size();
  });
  memory.gathered = state_->turns->gathered_bytes();
  memory.peak_gathered = state_->turns->stats().peak_bytes;
  return memory;
}

FsdpStats FullyShardedDataParallel::stats() const {
  const UnitTurns::Stats& turns = state_->turns->stats();
  const GradientPass::Stats& pass = state_->pass->stats();
  return {turns.gathers, turns.bytes, pass.reductions, pass.bytes, turns.wait_seconds + pass.wait_seconds};
}

Traffic FullyShardedDataParallel::traffic() const {
  Traffic sum = state_->comm.traffic();
  const Traffic other = state_->reductions.traffic();
  sum.calls += other.calls;
  sum.bytes_put += other.bytes_put;
  sum.signals += other.signals;
  return sum;
}

}  // namespace tutti::training
