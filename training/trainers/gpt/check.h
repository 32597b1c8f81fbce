// train_gpt --check: was the run of N ranks the same training as that of one process?
#pragma once

#include <string>

#include "training/trainers/gpt/run.h"

namespace tutti::training {

struct CheckResult {
  bool good = false;
  std::string sentence;  // "check: ..."
};

/// Against one process that does what the ranks did, one after the other (reference.h).
///
/// To the bit, losses and parameters, where the contracts promise bits: DDP with 1 or 2 data ranks (one addition has no
/// order) or deterministic, pipelines the same, FSDP deterministic without replicas; gradients exchanged once per step,
/// or no accumulation. Not where shards are offloaded from a GPU: the optimiser then rounds as the CPU does. Else
/// within the tolerance below. (The factor of clipping comes from f64 sums in an order of the ranks' own. Where
/// gradients are cut over ranks, that can move the f32 factor by a bit in about one case of 10^8.)
CheckResult check_against_ranks(const GptRunOptions& options, const ByteText& text, const GptResult& run);

/// Against one process with one batch of all data ranks' rows: the same mathematics, rounded elsewhere, so within a
/// tolerance. Errors: invalid_argument for a pipeline.
///
/// The tolerance of step s has two parts.
/// - Rounding of the loss itself: a mean of n f32 terms, added in any order, is off by at most n u of the mean of their
///   magnitudes (u = 2^-24; Higham, "Accuracy and Stability of Numerical Algorithms", section 4.2).
/// - Training amplifies rounding (Adam divides by the gradient's own size), at a rate that depends on model and
///   data and that no formula gives. So it is measured: the reference runs a second time with its additions (of ranks,
///   or of rows) in the opposite order, and the largest difference between the two up to step s is one sample of the
///   noise. 8 times that is allowed. With tensor parallelism under autocast the sums that are cut are of rounded
///   products; there the sample is the difference from the reference in f32.
CheckResult check_against_batch(const GptRunOptions& options, const ByteText& text, const GptResult& run);

}  // namespace tutti::training
