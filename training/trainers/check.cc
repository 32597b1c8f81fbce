#include "training/trainers/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace tutti::training {
namespace {

constexpr double kNoiseFactor = 8;  // check.h

bool same_bits(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const torch::Tensor& x, const torch::Tensor& y) {
    return x.nbytes() == y.nbytes() && std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0;
  });
}

CheckResult compare_within_tolerance(const GptRunOptions& options, const ByteText& text, const GptResult& run,
                                     Twin twin, Twin reversed, const std::string& what) {
  const GptResult one = train_twin(options, text, run.ranks, twin);
  const GptResult other = train_twin(options, text, run.ranks, reversed);
  const double terms = static_cast<double>(run.ranks) * options.batch * options.model.context * options.accumulate;
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
              fmt::format("check: FAILED: at step {} the loss of {} ranks is {:.9g}, that of one process with {} "
                          "{:.9g}; the difference passes the tolerance {:.3g}",
                          step, run.ranks, run.loss(step), what, one.loss(step), tolerance)};
    }
  }
  return {true,
          fmt::format("check: {} ranks have the losses of one process with {}, {} steps: largest difference {:.3g}, "
                      "at most {:.0f} % of its tolerance",
                      run.ranks, what, options.steps, largest, 100 * worst_share)};
}

}  // namespace

CheckResult check_against_shards(const GptRunOptions& options, const ByteText& text, const GptResult& run) {
  const std::string what = fmt::format("the gradients of {} batches added", run.ranks);
  if (run.ranks > 2 && !options.ddp.deterministic) {
    return compare_within_tolerance(options, text, run, Twin::shards, Twin::shards_reversed, what);
  }
  const GptResult twin = train_twin(options, text, run.ranks, Twin::shards);
  for (std::size_t i = 0; i < run.losses.size(); ++i) {
    if (std::memcmp(&run.losses[i], &twin.losses[i], sizeof(float)) == 0) continue;
    return {false, fmt::format("check: FAILED: at step {} the loss on the rows of rank {} is {:.9g} with {} ranks and "
                               "{:.9g} in one process; they should be equal to the bit",
                               i / static_cast<std::size_t>(run.ranks), i % static_cast<std::size_t>(run.ranks),
                               run.losses[i], run.ranks, twin.losses[i])};
  }
  if (!same_bits(run.parameters, twin.parameters)) {
    return {false, fmt::format("check: FAILED: the losses are equal to the bit, the final parameters are not")};
  }
  return {true,
          fmt::format("check: {} ranks and one process have the same losses ({} steps) and the same parameters, to "
                      "the bit; final loss {:.4f}",
                      run.ranks, options.steps, run.loss(options.steps - 1))};
}

CheckResult check_against_batch(const GptRunOptions& options, const ByteText& text, const GptResult& run) {
  return compare_within_tolerance(options, text, run, Twin::batch, Twin::batch_reversed,
                                  fmt::format("{} times the batch", run.ranks));
}

}  // namespace tutti::training
