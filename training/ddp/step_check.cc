#include "training/ddp/step_check.h"

#include <fmt/format.h>

#include <cstddef>
#include <exception>
#include <optional>
#include <utility>

namespace tutti::training {
namespace {

constexpr std::uint64_t kDoesNotCount = ~std::uint64_t{0};

std::string steps(std::uint64_t count) {
  return fmt::format("{} step{} without an exchange of gradients", count == 0 ? "no" : std::to_string(count),
                     count == 1 ? "" : "s");
}

}  // namespace

StepCheck::StepCheck(Communicator communicator, std::vector<torch::Tensor> parameters)
    : comm_(std::move(communicator)),
      parameters_(std::move(parameters)),
      of_ranks_(static_cast<std::size_t>(comm_.size())) {}

// The exchange writes into this object.
StepCheck::~StepCheck() {
  try {
    if (work_) work_.wait();
  } catch (const std::exception&) {
    // It has ended, which is all that matters here.
  }
}

// Each change in place raises a tensor's version, but for one by way of data(), as LibTorch's SGD makes them.
std::uint64_t StepCheck::versions() const {
  std::uint64_t sum = 0;
  for (const torch::Tensor& parameter : parameters_) sum += parameter._version();
  return sum;
}

void StepCheck::on_zero_grad() {
  const std::uint64_t versions_now = versions();
  const bool changed = versions_now != versions_at_zero_;
  sees_changes_ = sees_changes_ || (is_in_step_ && changed);
  if (is_in_step_ && !has_exchanged_ && (changed || !sees_changes_)) ++steps_without_;
  is_in_step_ = true;
  has_exchanged_ = false;
  is_zeroed_ = true;
  versions_at_zero_ = versions_now;
}

void StepCheck::start(bool counts) {
  if (comm_.size() == 1) return;
  const auto rank = static_cast<std::size_t>(comm_.rank());
  of_ranks_[rank] = counts ? 2 * steps_without_ + (is_zeroed_ ? 1 : 0) : kDoesNotCount;
  work_ = comm_.all_gather_async(&of_ranks_[rank], of_ranks_.data(), 1, DataType::u64);
}

std::string StepCheck::finish() {
  steps_without_ = 0;
  is_zeroed_ = false;
  if (comm_.size() == 1) return "";
  work_.wait();
  work_ = {};
  std::optional<std::size_t> first;
  for (std::size_t rank = 0; rank < of_ranks_.size(); ++rank) {
    if (of_ranks_[rank] == kDoesNotCount) continue;
    if (!first) first = rank;
    if (of_ranks_[rank] != of_ranks_[*first]) return difference(*first, rank);
  }
  return "";
}

std::string StepCheck::difference(std::size_t a, std::size_t b) const {
  const auto steps_of = [&](std::size_t rank) { return of_ranks_[rank] / 2; };
  if (steps_of(a) == steps_of(b)) {
    const std::size_t ahead = of_ranks_[a] < of_ranks_[b] ? a : b;
    return fmt::format(
        "rank {} exchanges gradients once more in its step, and rank {} those of a new one: rank {} ran backward "
        "once more, or left out zero_grad()",
        ahead, ahead == a ? b : a, ahead);
  }
  const std::size_t behind = steps_of(a) > steps_of(b) ? a : b;
  const std::size_t other = behind == a ? b : a;
  return fmt::format(
      "rank {} has made {} since its last one, and rank {} {}: a loss of rank {} used no trained parameter, or its "
      "backward was left out or all under no_sync(); a step without one calls average_gradients()",
      behind, steps(steps_of(behind)), other, steps(steps_of(other)), behind);
}

}  // namespace tutti::training
