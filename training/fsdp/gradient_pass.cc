#include "training/fsdp/gradient_pass.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <chrono>
#include <utility>

#include "training/abort.h"

namespace tutti::training {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kName = "FullyShardedDataParallel";

bool counts(ShardedParameter& parameter) { return parameter.trained() && parameter.full().numel() > 0; }

}  // namespace

class GradientPass::Hook : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(GradientPass* pass, std::size_t unit, std::size_t parameter) : pass_(pass), unit_(unit), parameter_(parameter) {}
  void operator()(const torch::Tensor&) override {
    or_abort(pass_->comms_, kName, [this] { told_with_reason([this] { pass_->on_gradient(unit_, parameter_); }); });
  }

 private:
  GradientPass* pass_;
  std::size_t unit_, parameter_;
};

GradientPass::GradientPass(std::vector<std::unique_ptr<Unit>>& units, UnshardSchedule& schedule, StepExchange& steps,
                           Communicator reductions, Communicator replicas, std::vector<Communicator> comms,
                           std::function<void()> before_pass, bool allow_unused)
    : units_(units),
      schedule_(schedule),
      steps_(steps),
      reductions_(std::move(reductions)),
      replicas_(std::move(replicas)),
      comms_(std::move(comms)),
      before_pass_(std::move(before_pass)),
      allow_unused_(allow_unused),
      progress_(units.size()) {
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    for (std::size_t i = 0; i < units_[unit]->parameters().size(); ++i) {
      ShardedParameter& parameter = *units_[unit]->parameters()[i];
      if (parameter.full().numel() == 0) continue;
      // Frozen ones too: they say so when they are unfrozen, or given to another such object.
      torch::autograd::impl::set_post_acc_grad_hooks(parameter.full(), std::make_unique<Hook>(this, unit, i));
    }
  }
}

GradientPass::~GradientPass() {
  for (const auto& unit : units_) {
    for (const auto& parameter : unit->parameters()) {
      if (parameter->full().numel() == 0) continue;
      torch::autograd::impl::set_post_acc_grad_hooks(parameter->full(), nullptr);
    }
  }
}

void GradientPass::fail(const std::string& what) const { fail_on_all(comms_, fmt::format("{}: {}", kName, what)); }

// Called behind each gradient, on the thread that runs backward.
void GradientPass::on_gradient(std::size_t unit, std::size_t parameter) {
  ShardedParameter& whole = *units_[unit]->parameters()[parameter];
  const std::string& name = whole.name();
  if (torch::GradMode::is_enabled()) {
    fail(fmt::format(
        "parameter '{}': backward with create_graph is not supported; the mean of gradients has no derivative", name));
  }
  if (const torch::Tensor& gradient = whole.full().grad(); gradient.defined() && gradient.layout() != torch::kStrided) {
    fail(fmt::format(
        "parameter '{}' got a {} gradient; expected a dense one (Embedding: EmbeddingOptions::sparse(false))", name,
        c10::str(gradient.layout())));
  }
  if (!open_) {
    open();
  } else if (torch::autograd::get_current_graph_task_id() != task_) {
    fail(
        fmt::format("parameter '{}' got a gradient in a backward pass that began before the previous one ended "
                    "(that one threw, or this one runs inside it)",
                    name));
  }
  Progress& progress = progress_[unit];
  if (progress.has_gradient[parameter]) {
    fail(fmt::format("parameter '{}' got two gradients in one backward pass", name));
  }
  progress.has_gradient[parameter] = true;
  if (--progress.pending > 0) return;
  schedule_.on_gradients(unit);
  if (reduces_) start_reductions();
}

void GradientPass::open() {
  begin();
  reduces_ = no_sync_depth_ == 0;
  task_ = torch::autograd::get_current_graph_task_id();
  torch::autograd::Engine::get_default_engine().queue_callback(
      [this] { or_abort(comms_, kName, [this] { told_with_reason([this] { close(); }); }); });
}

void GradientPass::reduce() {
  or_abort(comms_, kName, [this] {
    begin();
    reduces_ = true;
    close();
  });
}

void GradientPass::begin() {
  before_pass_();
  open_ = true;
  next_reduction_ = next_replica_mean_ = 0;
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    Progress& progress = progress_[unit] = {};
    for (const auto& parameter : units_[unit]->parameters()) {
      progress.has_gradient.push_back(!counts(*parameter));
      progress.pending += counts(*parameter) ? 1 : 0;
    }
  }
}

void GradientPass::start_reductions() {
  for (; next_reduction_ < units_.size(); ++next_reduction_) {
    const std::size_t unit = nth(next_reduction_);
    if (progress_[unit].pending > 0) break;
    progress_[unit].reduces = units_[unit]->has_trained();
    if (!progress_[unit].reduces) continue;
    units_[unit]->start_reduction();
    stats_.reductions += 1;
    stats_.bytes += units_[unit]->reduced_bytes();
  }
  if (replicas_) start_replica_means();
}

// Each can start when the unit's own reduction is done. While backward goes on, this thread does not wait for that.
void GradientPass::start_replica_means() {
  for (; next_replica_mean_ < next_reduction_; ++next_replica_mean_) {
    const std::size_t unit = nth(next_replica_mean_);
    if (!progress_[unit].reduces) continue;
    if (next_reduction_ < units_.size() && !units_[unit]->is_reduced()) return;
    units_[unit]->start_replica_mean(replicas_);
  }
}

// At the end of backward, on the thread that called it.
void GradientPass::close() {
  if (reduces_) {
    take_stock();
    start_reductions();
    const Clock::time_point begin = Clock::now();
    const std::vector<std::vector<bool>> unused = find_unused();
    for (std::size_t place = 0; place < units_.size(); ++place) {
      if (progress_[nth(place)].reduces) units_[nth(place)]->finish_reduction(unused[nth(place)]);
    }
    stats_.wait_seconds += std::chrono::duration<double>(Clock::now() - begin).count();
  }
  open_ = false;
  steps_.end_pass();
  schedule_.end_pass();
}

// Of gradients that this pass did not bring. What micro-batches under no_sync left is one, too.
void GradientPass::take_stock() {
  std::string first;
  std::size_t missing = 0;
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    for (std::size_t i = 0; i < units_[unit]->parameters().size(); ++i) {
      ShardedParameter& parameter = *units_[unit]->parameters()[i];
      if (progress_[unit].has_gradient[i]) continue;
      progress_[unit].has_gradient[i] = parameter.full().grad().defined();
      if (!progress_[unit].has_gradient[i] && missing++ == 0) first = parameter.name();
    }
    progress_[unit].pending = 0;
  }
  if (missing == 0 || allow_unused_) return;
  fail(
      fmt::format("parameter '{}'{} got no gradient in this backward pass; every trained parameter must take "
                  "part in the loss on every rank (freeze it with requires_grad_(false), or set "
                  "FsdpOptions::allow_unused)",
                  first, missing > 1 ? fmt::format(" and {} more", missing - 1) : ""));
}

// By unit and place: what no rank has a gradient for.
std::vector<std::vector<bool>> GradientPass::find_unused() {
  std::vector<std::vector<bool>> unused;
  for (const auto& unit : units_) unused.emplace_back(unit->parameters().size(), false);
  if (!allow_unused_) return unused;
  std::vector<std::uint8_t> used;
  for (const Progress& unit : progress_) used.insert(used.end(), unit.has_gradient.begin(), unit.has_gradient.end());
  reductions_.all_reduce(used.data(), used.data(), used.size(), DataType::u8, ReduceOp::max);
  if (replicas_) replicas_.all_reduce(used.data(), used.data(), used.size(), DataType::u8, ReduceOp::max);
  std::size_t at = 0;
  for (std::vector<bool>& unit : unused) {
    for (std::size_t i = 0; i < unit.size(); ++i) unit[i] = used[at++] == 0;
  }
  return unused;
}

}  // namespace tutti::training
