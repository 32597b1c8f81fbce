#include "training/fsdp/fsdp.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/variable.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "training/abort.h"
#include "training/clip.h"
#include "training/fsdp/gradient_pass.h"
#include "training/fsdp/unit.h"
#include "training/fsdp/unshard_schedule.h"
#include "training/model_form.h"
#include "training/replicas.h"
#include "training/streams.h"

namespace tutti::training {

struct FullyShardedDataParallel::State {
  State(torch::nn::Module& module, Communicator communicator, const FsdpOptions& given);
  ~State();

  void check_options() const;
  void check(const NamedTensor& item) const;
  void check_unchanged();
  void check_ties(const std::vector<NamedTensor>& all) const;
  void add_unit(UnitParameters plan);
  CallOptions call() const;
  std::vector<Communicator> communicators() const { return {comm, reductions, options.replicas}; }
  [[noreturn]] void fail(const std::string& what) const;
  torch::Tensor full(std::size_t index, bool gradient);

  template <class Visit>
  void for_each_parameter(Visit&& visit) const {
    for (const auto& [unit, place] : registration) visit(*units[unit]->parameters()[place]);
  }

  FsdpOptions options;
  Communicator comm, reductions;  // reductions: of their own, so that gradients travel while parameters do
  // Of all units' calls, where what travels is on a device.
  const std::shared_ptr<SideStream> side = std::make_shared<SideStream>();
  const std::shared_ptr<SideStream> reduction_side = std::make_shared<SideStream>();
  std::vector<std::unique_ptr<Unit>> units;
  std::vector<std::pair<std::size_t, std::size_t>> registration;  // the order of parameters: unit and place in it
  std::optional<ModelForm> form;                                  // as it is with sharded parameters
  std::unique_ptr<StepExchange> steps;
  std::unique_ptr<UnshardSchedule> schedule;
  std::unique_ptr<GradientPass> pass;
  std::vector<torch::Tensor> kept;  // by summon_full_parameters: shards that lie in what may be written to
};

FullyShardedDataParallel::State::State(torch::nn::Module& module, Communicator communicator, const FsdpOptions& given)
    : options(given), comm(std::move(communicator)) {
  if (options.prefetch < 0) fail(fmt::format("prefetch is {}; expected 0 or more", options.prefetch));
  check_options();
  const std::vector<NamedTensor> all = parameters_of(module);
  for (const NamedTensor& item : all) check(item);
  check_ties(all);
  if (options.replicas) check_same_instructions(all, options.replicas, "FullyShardedDataParallel");
  // Replicas give all ranks rank 0's values, and check that all have the same model.
  if (options.values == Values::rank_0) {
    if (options.replicas) Replicas(module, options.replicas, "FullyShardedDataParallel");
    Replicas(module, comm, "FullyShardedDataParallel");
  }
  reductions = comm.split(0, comm.rank());

  std::unordered_map<std::string, std::pair<std::size_t, std::size_t>> place;
  for (UnitParameters& plan : plan_units(module, options.units)) {
    for (std::size_t i = 0; i < plan.parameters.size(); ++i) place[plan.parameters[i].name] = {units.size(), i};
    add_unit(std::move(plan));
  }
  for (const NamedTensor& item : all) registration.push_back(place.at(item.name));
  if (options.compute_device) {
    const torch::NoGradGuard no_grad;
    for (NamedTensor& buffer : buffers_of(module)) buffer.tensor.set_data(buffer.tensor.to(*options.compute_device));
  }
  form.emplace(module, /*with_buffers=*/false);  // nothing is done with them later
  const std::vector comms = communicators();
  steps = std::make_unique<StepExchange>(comm, reductions);
  schedule =
      std::make_unique<UnshardSchedule>(units, *steps, comms,
                                        UnshardSchedule::Options{.reshards = options.sharding == Sharding::zero3,
                                                                 .after_forward = options.reshard != Reshard::never,
                                                                 .root_reshards = options.reshard == Reshard::always,
                                                                 .prefetch = options.prefetch});
  pass = std::make_unique<GradientPass>(
      units, *schedule, *steps, reductions, options.replicas, comms, [this] { check_unchanged(); },
      options.allow_unused);
}

// Whole parameters are no longer followed: better none of them than old values.
FullyShardedDataParallel::State::~State() {
  if (schedule->holds_all()) return;
  for_each_parameter([](ShardedParameter& parameter) { parameter.free_memory(); });
}

CallOptions FullyShardedDataParallel::State::call() const {
  CallOptions call;
  call.deterministic = options.deterministic;
  return call;
}

void FullyShardedDataParallel::State::fail(const std::string& what) const {
  throw Error(Code::invalid_argument, fmt::format("rank {}: FullyShardedDataParallel: {}", comm.rank(), what));
}

// With options that differ the ranks would make different calls.
void FullyShardedDataParallel::State::check_options() const {
  const auto type = [](const std::optional<torch::ScalarType>& given) {
    return given ? 1 + static_cast<std::uint64_t>(*given) : 0;
  };
  const std::pair<const char*, std::uint64_t> own[] = {
      {"sharding", static_cast<std::uint64_t>(options.sharding)},
      {"reshard", static_cast<std::uint64_t>(options.reshard)},
      {"values", static_cast<std::uint64_t>(options.values)},
      {"prefetch", static_cast<std::uint64_t>(options.prefetch)},
      {"replicas", options.replicas ? 1 : 0},
      {"compute_type", type(options.compute_type)},
      {"compute_device", options.compute_device ? 1 + static_cast<std::uint64_t>(options.compute_device->type()) : 0},
      {"reduce_type", type(options.reduce_type)},
      {"deterministic", options.deterministic ? 1 : 0},
      {"allow_unused", options.allow_unused ? 1 : 0}};
  constexpr std::size_t kCount = std::size(own);
  std::vector<std::uint64_t> all(kCount * static_cast<std::size_t>(comm.size()));
  std::array<std::uint64_t, kCount> mine{};
  for (std::size_t i = 0; i < kCount; ++i) mine[i] = own[i].second;
  Communicator calls = comm;
  calls.all_gather(mine.data(), all.data(), kCount, DataType::u64);
  for (std::size_t at = kCount; at < all.size(); ++at) {
    if (all[at] == all[at % kCount]) continue;
    throw Error(Code::mismatch, fmt::format("FullyShardedDataParallel: option '{}' of rank {} is not that of rank 0; "
                                            "expected the same options on all ranks",
                                            own[at % kCount].first, at / kCount));
  }
}

void FullyShardedDataParallel::State::check(const NamedTensor& item) const {
  const torch::Tensor& tensor = item.tensor;
  const bool offloads = options.compute_device.has_value();
  if (!is_communicable(tensor) || !floating_type_of(tensor) || (offloads && !tensor.is_cpu())) {
    fail(fmt::format("parameter '{}' is a {} of {} on {}; expected a dense f32, f64, f16 or bf16 tensor on the CPU{}",
                     item.name, c10::str(tensor.layout()), c10::toString(tensor.scalar_type()), tensor.device().str(),
                     offloads ? ", from where it is offloaded" : " or a CUDA device"));
  }
  if (!tensor.is_contiguous()) fail(fmt::format("parameter '{}' is not contiguous", item.name));
  torch::autograd::impl::materialize_autograd_meta(tensor);  // there is none, if it was never to be trained
  if (torch::autograd::impl::post_acc_grad_hooks(tensor) != nullptr) {
    fail(
        fmt::format("parameter '{}' has a gradient hook already (of another FullyShardedDataParallel or a "
                    "DistributedDataParallel?)",
                    item.name));
  }
}

// Not collective: a rank that finds a change ends the step for all.
void FullyShardedDataParallel::State::check_unchanged() {
  std::string change = form->change();
  for_each_parameter([&](const ShardedParameter& parameter) {
    if (const char* own = parameter.change(); own != nullptr && change.empty()) {
      change = fmt::format("'{}' {}", parameter.name(), own);
    }
  });
  if (!change.empty()) fail_on_all(communicators(), sentence_about(change, "FullyShardedDataParallel"));
}

// One tensor under two names stays tied. Two tensors of one memory would each get a shard of their own.
void FullyShardedDataParallel::State::check_ties(const std::vector<NamedTensor>& all) const {
  std::unordered_map<const void*, const std::string*> names;
  for (const NamedTensor& item : all) {
    if (item.tensor.numel() == 0) continue;
    const auto [first, is_new] = names.emplace(item.tensor.const_data_ptr(), &item.name);
    if (is_new) continue;
    fail(fmt::format(
        "parameters '{}' and '{}' are two tensors of one memory; expected weights that are tied to be one tensor, "
        "registered under both names",
        *first->second, item.name));
  }
}

void FullyShardedDataParallel::State::add_unit(UnitParameters plan) {
  std::vector<std::unique_ptr<ShardedParameter>> parameters;
  for (NamedTensor& item : plan.parameters) {
    const torch::ScalarType type = options.compute_type.value_or(item.tensor.scalar_type());
    parameters.push_back(std::make_unique<ShardedParameter>(
        std::move(item), comm.rank(), comm.size(),
        ShardedParameter::Options{type, options.compute_device, options.sharding != Sharding::zero3}));
  }
  units.push_back(std::make_unique<Unit>(plan.name, std::move(parameters), comm, reductions,
                                         Unit::Options{options.sharding == Sharding::zero1, options.compute_device,
                                                       options.reduce_type, call(), side, reduction_side}));
}

FullyShardedDataParallel::FullyShardedDataParallel(torch::nn::Module& module, Communicator communicator,
                                                   const FsdpOptions& options)
    : state_(std::make_shared<State>(module, std::move(communicator), options)) {}
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
  state_->check_unchanged();  // before forward meets the change
  state_->steps->on_zero_grad();
  state_->for_each_parameter([](ShardedParameter& parameter) {
    parameter.drop_gradient();
    parameter.full().mutable_grad().reset();
  });
}

FullyShardedDataParallel::NoSync FullyShardedDataParallel::no_sync() { return NoSync(state_->pass->no_sync_depth()); }

void FullyShardedDataParallel::reduce_gradients() {
  if (state_->pass->is_open()) state_->fail("reduce_gradients: called during backward");
  state_->pass->reduce();
}

double FullyShardedDataParallel::clip_grad_norm(double largest) {
  if (!(largest >= 0)) state_->fail(fmt::format("clip_grad_norm: largest is {}; expected 0 or more", largest));
  return training::clip_grad_norm({parameters(), {}}, {state_->comm}, largest);
}

FullyShardedDataParallel::FullParameters FullyShardedDataParallel::summon_full_parameters(bool write_back) {
  State& state = *state_;
  if (state.schedule->holds_all()) state.fail("summon_full_parameters: the parameters are whole already");
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
  state.schedule->unshard_all();
  if (!write_back) {
    state.for_each_parameter([&](ShardedParameter& parameter) {
      if (parameter.lies_in_full()) state.kept.push_back(parameter.shard().detach().clone());
    });
  }
  return FullParameters(state_, write_back);
}

FullyShardedDataParallel::FullParameters::~FullParameters() {
  const std::shared_ptr<State> state = state_.lock();
  if (!state) return;
  const torch::NoGradGuard no_grad;
  std::size_t kept = 0;
  // Writes to the shards, so that what may be left of the others' rows expires.
  state->for_each_parameter([&](ShardedParameter& parameter) {
    const RowLayout& layout = parameter.layout();
    torch::Tensor own = parameter.shard().detach().view({-1});
    if (write_back_) {
      own.copy_(parameter.flat().narrow(0, layout.first * layout.row_elements, own.numel()));
    } else if (parameter.lies_in_full()) {
      own.copy_(state->kept[kept++].view({-1}));
    }
  });
  state->kept.clear();
  state->schedule->reshard_all();
}

torch::Tensor FullyShardedDataParallel::State::full(std::size_t index, bool gradient) {
  if (index >= registration.size())
    fail(fmt::format("there is no parameter {}; expected less than {}", index, registration.size()));
  const auto [unit, place] = registration[index];
  ShardedParameter& parameter = *units[unit]->parameters()[place];
  const torch::Tensor rows = gradient ? parameter.shard().grad() : parameter.shard().detach();
  if (!rows.defined()) fail(fmt::format("full_gradient: parameter '{}' has no gradient", parameter.name()));
  torch::Tensor own = torch::zeros({parameter.layout().piece()}, rows.options());
  own.narrow(0, 0, rows.numel()).copy_(rows.view({-1}));
  torch::Tensor all = torch::empty({own.numel() * comm.size()}, own.options());
  comm.all_gather(own.data_ptr(), all.data_ptr(), count_of(own), *floating_type_of(own), in_stream_of(own));
  return all.narrow(0, 0, parameter.full().numel()).view(parameter.full().sizes());
}

torch::Tensor FullyShardedDataParallel::full_parameter(std::size_t index) { return state_->full(index, false); }
torch::Tensor FullyShardedDataParallel::full_gradient(std::size_t index) { return state_->full(index, true); }

std::vector<std::string> FullyShardedDataParallel::units() const {
  std::vector<std::string> names = {""};
  for (const std::size_t index : state_->schedule->order()) names.push_back(state_->units[index]->name());
  return names;
}

FsdpMemory FullyShardedDataParallel::memory() const {
  FsdpMemory memory;
  state_->for_each_parameter([&](ShardedParameter& parameter) {
    memory.shards += parameter.lies_in_full() ? parameter.full_bytes() : parameter.shard_bytes();
    memory.gradients += parameter.gradient_bytes();
    const auto own_elements = static_cast<std::size_t>(parameter.layout().own * parameter.layout().row_elements);
    memory.padding += parameter.lies_in_full()
                          ? static_cast<std::size_t>(parameter.layout().padding()) * parameter.full().element_size()
                          : parameter.shard_bytes() - own_elements * parameter.shard().element_size();
  });
  memory.gathered = state_->schedule->gathered_bytes();
  memory.peak_gathered = state_->schedule->stats().peak_bytes;
  return memory;
}

FsdpStats FullyShardedDataParallel::stats() const {
  const UnshardSchedule::Stats& schedule = state_->schedule->stats();
  const GradientPass::Stats& pass = state_->pass->stats();
  return {schedule.gathers, schedule.bytes, pass.reductions, pass.bytes, schedule.wait_seconds + pass.wait_seconds};
}

std::vector<Communicator> FullyShardedDataParallel::communicators() const { return state_->communicators(); }

Traffic FullyShardedDataParallel::traffic() const {
  Traffic sum = state_->comm.traffic();
  const Traffic other = state_->reductions.traffic();
  sum.calls += other.calls;
  sum.bytes_put += other.bytes_put;
  sum.signals += other.signals;
  return sum;
}

}  // namespace tutti::training
