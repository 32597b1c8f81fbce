#include "training/precision/grad_scaler.h"

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <exception>
#include <limits>
#include <map>
#include <string>
#include <utility>

namespace tutti::training {

GradScaler::GradScaler(const GradScalerOptions& options, std::vector<Communicator> communicators)
    : options_(options), communicators_(std::move(communicators)) {
  set({options.init_scale, options.growth_factor, options.backoff_factor, options.growth_interval, 0});
}

void GradScaler::fail(const char* call, const std::string& what) const {
  const std::string who = communicators_.empty() ? "" : fmt::format("rank {}: ", communicators_.front().rank());
  throw Error(Code::invalid_argument, fmt::format("{}GradScaler::{}: {}", who, call, what));
}

void GradScaler::set(const GradScalerState& state) {
  if (!options_.enabled) return;
  const auto scale = static_cast<float>(state.scale);
  if (!(scale > 0) || !std::isfinite(scale))
    fail("GradScaler", fmt::format("scale {} is not above 0, or no finite number of f32", state.scale));
  if (!(state.growth_factor > 1)) {
    fail("GradScaler", fmt::format("growth_factor {} is not above 1", state.growth_factor));
  }
  if (!(state.backoff_factor > 0 && state.backoff_factor < 1)) {
    fail("GradScaler", fmt::format("backoff_factor {} is not between 0 and 1", state.backoff_factor));
  }
  if (state.growth_interval < 1 || state.growth_tracker < 0) {
    fail("GradScaler", fmt::format("growth_interval {} is below 1 or growth_tracker {} below 0", state.growth_interval,
                                   state.growth_tracker));
  }
  options_.growth_factor = state.growth_factor;
  options_.backoff_factor = state.backoff_factor;
  options_.growth_interval = state.growth_interval;
  scale_ = scale;
  growth_tracker_ = state.growth_tracker;
}

GradScalerState GradScaler::state() const {
  return {get_scale(), options_.growth_factor, options_.backoff_factor, options_.growth_interval, growth_tracker_};
}

void GradScaler::load_state(const GradScalerState& state) { set(state); }

torch::Tensor GradScaler::scale(const torch::Tensor& loss) {
  if (!options_.enabled) return loss;
  scaled_ = true;
  return loss * torch::scalar_tensor(scale_, loss.options().dtype(torch::kFloat32).requires_grad(false));
}

void GradScaler::check_scaled(const char* call) const {
  if (!scaled_) fail(call, "nothing was scaled yet; call scale(loss).backward() first");
}

/// Returns whether there were gradients. Throws before it changed any.
bool GradScaler::unscale_own(torch::optim::Optimizer& optimizer, bool* found_inf) const {
  // By type and device, for the kernel takes only equal ones.
  std::map<std::pair<torch::ScalarType, std::string>, std::vector<torch::Tensor>> kinds;
  std::size_t group = 0;
  for (torch::optim::OptimizerParamGroup& parameters : optimizer.param_groups()) {
    for (std::size_t i = 0; i < parameters.params().size(); ++i) {
      const torch::Tensor& gradient = parameters.params()[i].grad();
      if (!gradient.defined()) continue;
      if (gradient.scalar_type() == torch::kFloat16) {
        fail("unscale_", fmt::format("parameter {} of group {} has an f16 gradient; the optimizer's parameters must be "
                                     "f32 (use Autocast or MasterWeights)",
                                     i, group));
      }
      kinds[{gradient.scalar_type(), gradient.device().str()}].push_back(gradient.is_sparse() ? gradient._values()
                                                                                              : gradient);
    }
    ++group;
  }
  torch::NoGradGuard no_grad;
  const auto inverse = static_cast<float>(1.0 / static_cast<double>(scale_));  // rounded once, from f64
  for (auto& [kind, gradients] : kinds) {
    const auto options = torch::dtype(torch::kFloat32).device(gradients.front().device());
    torch::Tensor found = torch::zeros({}, options);
    at::_amp_foreach_non_finite_check_and_unscale_(gradients, found, torch::scalar_tensor(inverse, options));
    *found_inf |= found.item<float>() != 0;
  }
  return !kinds.empty();
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) return;
  if (communicators_.empty()) check_scaled("unscale_");
  PerOptimizer& mine = optimizers_[&optimizer];
  if (mine.stage == Stage::unscaled) fail("unscale_", "was called for this optimizer since the last update()");
  if (mine.stage == Stage::stepped) fail("unscale_", "is called after step(); call update() first");

  // A rank that must refuse tells the others in the same call, so that all of them throw and none waits.
  enum { kRefused, kFoundInf, kHadGradients, kScaled, kFlags };
  std::array<float, kFlags> flags{};
  std::exception_ptr error;
  try {
    bool found_inf = false;
    flags[kHadGradients] = unscale_own(optimizer, &found_inf);
    flags[kFoundInf] = found_inf;
  } catch (const std::exception&) {
    error = std::current_exception();
    flags[kRefused] = 1;
  }
  flags[kScaled] = scaled_;
  for (Communicator& comm : communicators_) {
    comm.all_reduce(flags.data(), flags.data(), flags.size(), DataType::f32, ReduceOp::max);
  }
  if (error) std::rethrow_exception(error);
  if (flags[kRefused] != 0) fail("unscale_", "another rank refused its gradients and says why");
  scaled_ = flags[kScaled] != 0;
  check_scaled("unscale_");
  mine = {Stage::unscaled, flags[kHadGradients] != 0, flags[kFoundInf] != 0};
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  if (options_.enabled) {
    PerOptimizer& mine = optimizers_[&optimizer];
    if (mine.stage == Stage::stepped) fail("step", "was called for this optimizer since the last update()");
    if (mine.stage == Stage::ready) unscale_(optimizer);
    if (!mine.checked) fail("step", "the optimizer's parameters have no gradient on any rank");
    mine.stage = Stage::stepped;
    if (mine.found_inf) return false;
  }
  optimizer.step();
  return true;
}

void GradScaler::update(std::optional<double> new_scale) {
  if (!options_.enabled) return;
  check_scaled("update");
  if (new_scale) {
    GradScalerState next = state();
    next.scale = *new_scale;
    set(next);
  } else {
    bool checked = false, found_inf = false;
    for (const auto& [optimizer, found] : optimizers_) {
      checked |= found.checked;
      found_inf |= found.found_inf;
    }
    if (!checked) fail("update", "no gradients were checked since the last update(); call step(optimizer) first");
    if (found_inf) {
      // Never 0, whose inverse is no number: the least normal one.
      scale_ = std::max(static_cast<float>(scale_ * options_.backoff_factor), std::numeric_limits<float>::min());
      growth_tracker_ = 0;
    } else if (++growth_tracker_ == options_.growth_interval) {
      const auto grown = static_cast<float>(scale_ * options_.growth_factor);
      if (std::isfinite(grown)) scale_ = grown;
      growth_tracker_ = 0;
    }
  }
  optimizers_.clear();
}

}  // namespace tutti::training
