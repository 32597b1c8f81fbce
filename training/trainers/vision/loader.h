// The rows of a run of train_vision, step after step, made in the background.
//
//   VisionLoader loader(data, {.shares = comm.size(), .first = comm.rank(), .count = 1, .rows = 32});
//   for (int epoch = 0; epoch < 3; ++epoch) {
//     loader.begin(epoch);
//     while (const auto step = loader.next()) train_on(step->batches[0]);
//   }
//
// Each step is divided in shares by a DistributedSampler: one for each rank of data parallelism, or one for each
// micro-batch of a pipeline. Who trains in one process takes all of them and sees what the others saw together.
// Errors: tutti::Error, invalid_argument, when not even one step can be made (EpochEnd::drop, fewer images than
// shares). Threads: next() by one thread; a second one reads ahead. `data` must outlive this object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "training/data/loader.h"
#include "training/data/sampler.h"
#include "training/trainers/vision/data.h"

namespace tutti::training {

struct VisionLoaderOptions {
  int shares = 1;         // of each step
  int first = 0;          // share that is wanted
  int count = 1;          // of shares from there on; may be 0
  std::size_t rows = 32;  // at most, of each share
  std::uint64_t seed = 0;
  EpochEnd end = EpochEnd::uneven;
};

struct VisionRows {
  std::vector<std::size_t> counts;  // rows of each share; with EpochEnd::pad the repeated ones, too
  std::size_t total = 0;            // sum of counts
  std::vector<ImageBatch> batches;  // of the shares that are wanted; may have no rows
};

class VisionLoader {
 public:
  VisionLoader(const VisionData& data, const VisionLoaderOptions& options);

  int steps() const;  // of an epoch; the same for every share
  void begin(int epoch);
  /// None at the end of the epoch.
  std::optional<VisionRows> next() { return loader_->next(); }

 private:
  VisionRows make(std::uint64_t step) const;

  const VisionData& data_;
  const VisionLoaderOptions options_;
  std::vector<DistributedSampler> samplers_;  // of each share
  std::optional<Loader<VisionRows>> loader_;  // last: its thread uses the rest
};

}  // namespace tutti::training
