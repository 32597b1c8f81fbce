#include "training/fsdp/unshard_schedule.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "training/abort.h"
#include "training/fsdp/units.h"

namespace tutti::training {
namespace {

using Clock = std::chrono::steady_clock;

bool in_backward() { return torch::autograd::get_current_graph_task_id() != -1; }

/// Asks for the kind of two tensors, and reads neither. A gather for it would be this rank's alone, or out of order.
bool is_of_set_data(const c10::OperatorHandle& op) {
  return op.operator_name().name == "aten::_has_compatible_shallow_copy_type";
}

bool has(const std::vector<std::size_t>& set, std::size_t unit) {
  return std::find(set.begin(), set.end(), unit) != set.end();
}

}  // namespace

UnshardSchedule::UnshardSchedule(std::vector<std::unique_ptr<Unit>>& units, StepExchange& steps,
                                 std::vector<Communicator> comms, const Options& options)
    : units_(units),
      steps_(steps),
      comms_(std::move(comms)),
      options_(options),
      has_gradients_(units.size(), false),
      watch_([this](const c10::OperatorHandle& op, torch::jit::Stack& arguments) { before(op, arguments); }) {
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    for (const auto& parameter : units_[unit]->parameters()) {
      unit_of_storage_[parameter->storage()] = unit;
      unit_of_shard_[parameter->shard().storage().unsafeGetStorageImpl()] = unit;
    }
  }
}

void UnshardSchedule::before(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) {
  std::vector<std::size_t> used;  // on whichever thread
  const std::vector<c10::Argument>& formal = op.schema().arguments();
  for_each_tensor(arguments, formal.size(), [&](const torch::Tensor& tensor, std::size_t i) {
    if (!tensor.defined() || !tensor.has_storage()) return;
    const void* storage = tensor.storage().unsafeGetStorageImpl();
    if (const auto found = unit_of_storage_.find(storage); found != unit_of_storage_.end()) {
      if (!has(used, found->second)) used.push_back(found->second);
    } else if (formal[i].alias_info() != nullptr && formal[i].alias_info()->isWrite()) {
      const auto written = unit_of_shard_.find(storage);
      if (written == unit_of_shard_.end()) return;
      units_[written->second]->expire();
      steps_.on_write();
    }
  });
  if (used.empty() || held_ || is_of_set_data(op)) return;
  or_abort(comms_, "FullyShardedDataParallel", [&] {
    told_with_reason([&] {
      if (!in_backward()) steps_.meet();
      use(used);
    });
  });
}

// A backward that only passes through, to another network's parameters, brings no gradient that would end it here.
// Activation checkpoints run others inside it, whose ends are none.
void UnshardSchedule::end_with_backward() {
  const bool began = std::exchange(in_backward_, in_backward());
  if (!in_backward_ || began) return;
  torch::autograd::Engine::get_default_engine().queue_callback([this] {
    in_backward_ = false;
    end_pass();
  });
}

void UnshardSchedule::use(const std::vector<std::size_t>& used) {
  end_with_backward();
  set_in_use(used);
  for (const std::size_t unit : used) {
    if (units_[unit]->is_unsharded()) {
      // As the last unit of forward is in backward. The root's use at the end of forward is no start.
      if (unit != kRootUnit && ahead_of_ != std::pair(unit, in_backward())) prefetch(unit);
      continue;
    }
    start_gather(unit);
    prefetch(unit);
    finish_gather(unit);
  }
}

// The root unit's parameters are used at both ends of most models, so by default it stays unsharded in between.
void UnshardSchedule::set_in_use(const std::vector<std::size_t>& used) {
  bool changes = false;
  for (const std::size_t unit : used) {
    if (unit != kRootUnit && !has(order_, unit)) order_.push_back(unit);
    changes = changes || (reshards_after_use(unit) && !has(in_use_, unit));
  }
  if (!changes) return;
  for (const std::size_t unit : in_use_) {
    const bool is_over = in_backward() ? has_gradients_[unit] || !units_[unit]->has_trained() : options_.after_forward;
    if (is_over && !has(used, unit)) reshard(unit);
  }
  in_use_.clear();
  for (const std::size_t unit : used) {
    if (reshards_after_use(unit)) in_use_.push_back(unit);
  }
}

void UnshardSchedule::start_gather(std::size_t unit) {
  if (units_[unit]->is_gathering()) return;
  units_[unit]->start_gather();
  stats_.gathers += 1;
  stats_.bytes += units_[unit]->bytes();
  stats_.peak_bytes = std::max(stats_.peak_bytes, gathered_bytes());
}

void UnshardSchedule::finish_gather(std::size_t unit) {
  const Clock::time_point begin = Clock::now();
  units_[unit]->finish_gather();
  stats_.wait_seconds += std::chrono::duration<double>(Clock::now() - begin).count();
}

void UnshardSchedule::prefetch(std::size_t unit) {
  ahead_of_ = {unit, in_backward()};
  const std::ptrdiff_t step = in_backward() ? -1 : 1;
  std::ptrdiff_t at = unit == kRootUnit ? -1 : std::find(order_.begin(), order_.end(), unit) - order_.begin();
  for (int ahead = 0; ahead < options_.prefetch; ++ahead) {
    at += step;
    if (at < 0 || at >= static_cast<std::ptrdiff_t>(order_.size())) return;
    const std::size_t next = order_[static_cast<std::size_t>(at)];
    if (!units_[next]->is_unsharded()) start_gather(next);
  }
}

void UnshardSchedule::reshard(std::size_t unit) {
  if (options_.reshards && !held_) units_[unit]->reshard();
}

// A unit with frozen parameters may still need them for the gradient of its input.
void UnshardSchedule::on_gradients(std::size_t unit) {
  has_gradients_[unit] = true;
  if (reshards_after_use(unit) && !units_[unit]->has_frozen()) reshard(unit);
}

void UnshardSchedule::end_pass() {
  has_gradients_.assign(units_.size(), false);
  in_use_.clear();
  for (std::size_t unit = 0; unit < units_.size(); ++unit) reshard(unit);
}

void UnshardSchedule::unshard_all() {
  or_abort(comms_, "FullyShardedDataParallel", [this] {
    for (std::size_t unit = 0; unit < units_.size(); ++unit) {
      if (units_[unit]->is_unsharded()) continue;
      start_gather(unit);
      finish_gather(unit);
    }
  });
  held_ = true;
}

void UnshardSchedule::reshard_all() {
  held_ = false;
  end_pass();
}

std::size_t UnshardSchedule::gathered_bytes() const {
  std::size_t sum = 0;
  for (const auto& unit : units_) sum += unit->gathered_bytes();
  return sum;
}

}  // namespace tutti::training
