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
  return fmt::format("{} step{} without a gradient", count == 0 ? "no" : std::to_string(count), count == 1 ? "" : "s");
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

// Each change in place raises a tensor's version.
std::uint64_t StepCheck::versions() const {
  std::uint64_t sum = 0;
  for (const torch::Tensor& parameter : parameters_) sum += parameter._version();
  return sum;
}

void StepCheck::on_zero_grad() {
  const std::uint64_t versions_now = versions();
  if (is_in_step_ && !has_gradient_ && versions_now != versions_at_zero_) ++steps_without_;
  is_in_step_ = true;
  has_gradient_ = false;
  versions_at_zero_ = versions_now;
}

void StepCheck::start(bool counts) {
  if (comm_.size() == 1) return;
  const auto rank = static_cast<std::size_t>(comm_.rank());
  of_ranks_[rank] = counts ? steps_without_ : kDoesNotCount;
  work_ = comm_.all_gather_async(&of_ranks_[rank], of_ranks_.data(), 1, DataType::u64);
}

std::string StepCheck::finish() {
  steps_without_ = 0;
  if (comm_.size() == 1) return "";
  work_.wait();
  work_ = {};
  std::optional<std::size_t> first;
  for (std::size_t rank = 0; rank < of_ranks_.size(); ++rank) {
    if (of_ranks_[rank] == kDoesNotCount) continue;
    if (!first) first = rank;
    if (of_ranks_[rank] == of_ranks_[*first]) continue;
    const bool later = of_ranks_[rank] > of_ranks_[*first];
    const std::size_t behind = later ? rank : *first;
    const std::size_t other = later ? *first : rank;
    return fmt::format(
        "rank {} has made {} since its last exchange, and rank {} {}: a loss of rank {} used no trained parameter, or "
        "its "
        "backward was left out; a step without one calls average_gradients()",
        behind, steps(of_ranks_[behind]), other, steps(of_ranks_[other]), behind);
  }
  return "";
}

}  // namespace tutti::training
