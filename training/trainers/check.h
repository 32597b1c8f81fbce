// train_gpt --check: was the run of N ranks the same training as that of one process?
#pragma once

#include <functional>
#include <string>

#include "training/trainers/gpt_run.h"

namespace tutti::training {

struct CheckResult {
  bool good = false;
  std::string sentence;  // "check: ..."
};

/// Against one process that computes each rank's gradients in turn, adds them in rank order and divides.
/// 2 ranks (one addition has no order) or deterministic: losses and parameters must be equal to the bit.
/// Else the ranks added in an order of their own: losses must agree within the tolerance below.
CheckResult check_against_shards(const GptRunOptions& options, const ByteText& text, const GptResult& run);

/// Against one process with one batch of all ranks' rows: the same mathematics, rounded elsewhere, so within a
/// tolerance.
///
/// The tolerance of step s has two parts.
/// - Rounding of the loss itself: a mean of n f32 terms, added in any order, is off by at most n u of the mean of their
///   magnitudes (u = 2^-24; Higham, "Accuracy and Stability of Numerical Algorithms", section 4.2).
/// - Training amplifies rounding (Adam divides by the gradient's own size), at a rate that depends on model and data
/// and
///   that no formula gives. So it is measured: the twin runs a second time with its additions in the opposite order,
///   and the largest difference between the two up to step s is one sample of the noise. 8 times that is allowed.
CheckResult check_against_batch(const GptRunOptions& options, const ByteText& text, const GptResult& run);

}  // namespace tutti::training
