#include "training/trainers/gpt/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "training/trainers/gpt/reference.h"

namespace tutti::training {
namespace {

constexpr double kNoiseFactor = 8;  // check.h

/// "2 ranks", or "4 ranks (dp=2,tp=2)".
std::string who(const MeshShape& mesh) {
  const bool plain = mesh.dp == mesh.ranks();
  return fmt::format("{} ranks{}", mesh.ranks(), plain ? "" : fmt::format(" ({})", to_text(mesh)));
}

bool promises_bits(const GptRunOptions& options) {
  const MeshShape& mesh = options.mesh;
  if (mesh.tp > 1) return false;
  if (options.offload && !options.device.is_cpu()) return false;  // only here does the optimiser run on the CPU
  if (options.exchanges_every_pass() && options.passes() > 1 && mesh.data_ranks() > 1) return false;
  if (mesh.fsdp > 1) return options.deterministic && mesh.dp == 1;
  return options.deterministic || mesh.dp <= 2;
}

bool same_bits(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const torch::Tensor& x, const torch::Tensor& y) {
    return x.nbytes() == y.nbytes() && std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0;
  });
}

CheckResult compare_within_tolerance(const GptRunOptions& options, const GptResult& run, const GptResult& one,
                                     const GptResult& other, const std::string& what) {
  const double terms = static_cast<double>(run.data_ranks) * options.batch * options.model.context * options.passes();
  double noise = 0, worst_share = 0, largest = 0;
  for (int step = 0; step < options.steps; ++step) {
    noise = std::max(noise, std::abs(one.loss(step) - other.loss(step)));
    const double tolerance = terms * std::ldexp(1.0, -24) * std::abs(one.loss(step)) + kNoiseFactor * noise;
    const double difference = std::abs(run.loss(step) - one.loss(step));
    largest = std::max(largest, difference);
    // Written so that a loss that is not a number fails.
    worst_share = difference <= tolerance ? std::max(worst_share, difference / tolerance) : INFINITY;
    if (std::isinf(worst_share)) {
      return {false,
              fmt::format("check: FAILED: at step {} the loss of {} is {:.9g}, that of one process with {} {:.9g}; the "
                          "difference passes the tolerance {:.3g}",
                          step, who(options.mesh), run.loss(step), what, one.loss(step), tolerance)};
    }
  }
  return {true,
          fmt::format("check: {} have the losses of one process with {}, {} steps: largest difference {:.3g}, at most "
                      "{:.0f} % of its tolerance",
                      who(options.mesh), what, options.steps, largest, 100 * worst_share)};
}

CheckResult compare_bits(const GptRunOptions& options, const GptResult& run, const GptResult& reference) {
  for (std::size_t i = 0; i < run.losses.size(); ++i) {
    if (std::memcmp(&run.losses[i], &reference.losses[i], sizeof(float)) == 0) continue;
    const auto ranks = static_cast<std::size_t>(run.data_ranks);
    return {false, fmt::format("check: FAILED: at step {} the loss on the rows of data rank {} is {:.9g} with {} and "
                               "{:.9g} in one process; they should be equal to the bit",
                               i / ranks, i % ranks, run.losses[i], who(options.mesh), reference.losses[i])};
  }
  if (!same_bits(run.parameters, reference.parameters)) {
    return {false, "check: FAILED: the losses are equal to the bit, the final parameters are not"};
  }
  return {true,
          fmt::format("check: {} and one process have the same losses ({} steps) and the same parameters, to the bit; "
                      "final loss {:.4f}",
                      who(options.mesh), options.steps, run.loss(options.steps - 1))};
}

}  // namespace

CheckResult check_against_ranks(const GptRunOptions& options, const ByteText& text, const GptResult& run) {
  const GptResult reference = train_reference(options, text, {});
  if (promises_bits(options)) return compare_bits(options, run, reference);
  const bool tensor = options.mesh.tp > 1;
  GptRunOptions other = options;
  // Two ranks' sum is the same in either order, so there the rows are turned round.
  ReferenceOrder order{/*ranks_reversed=*/true,
                       /*rows_reversed=*/options.mesh.ranks() != options.mesh.dp || run.data_ranks <= 2};
  if (tensor && options.precision != Precision::fp32) {
    other.precision = Precision::fp32;
    order = {};
  }
  const std::string what =
      run.data_ranks == 1 ? "the same rows" : fmt::format("the gradients of {} batches added", run.data_ranks);
  return compare_within_tolerance(options, run, reference, train_reference(other, text, order), what);
}

CheckResult check_against_batch(const GptRunOptions& options, const ByteText& text, const GptResult& run) {
  const GptResult one = train_reference(options, text, {.one_batch = true});
  const GptResult other = train_reference(options, text, {.rows_reversed = true, .one_batch = true});
  return compare_within_tolerance(options, run, one, other, fmt::format("{} times the batch", run.data_ranks));
}

}  // namespace tutti::training
