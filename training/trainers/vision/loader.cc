#include "training/trainers/vision/loader.h"

#include <fmt/format.h>

#include <cstddef>

#include "tutti/tutti.hpp"

namespace tutti::training {

VisionLoader::VisionLoader(const VisionData& data, const VisionLoaderOptions& options)
    : data_(data), options_(options) {
  for (int share = 0; share < options.shares; ++share) {
    samplers_.emplace_back(static_cast<std::uint64_t>(data.train.count()), share, options.shares,
                           SamplerOptions{.seed = options.seed, .end = options.end});
  }
  if (steps() > 0) return;
  throw Error(Code::invalid_argument, fmt::format("train_vision: {} images are fewer than the {} shares of a step",
                                                  data.train.count(), options.shares));
}

int VisionLoader::steps() const { return static_cast<int>(samplers_[0].steps(options_.rows)); }

void VisionLoader::begin(int epoch) {
  loader_.reset();  // its thread reads the samplers
  for (DistributedSampler& sampler : samplers_) sampler.set_epoch(static_cast<std::uint64_t>(epoch));
  loader_.emplace([this](std::uint64_t step) { return make(step); },
                  LoaderOptions{.end = static_cast<std::uint64_t>(steps())});
}

VisionRows VisionLoader::make(std::uint64_t step) const {
  VisionRows rows;
  for (int share = 0; share < options_.shares; ++share) {
    const SamplerStep part = *samplers_[static_cast<std::size_t>(share)].peek(step, options_.rows);
    rows.counts.push_back(part.indices.size());
    rows.total += part.indices.size();
    const int place = share - options_.first;
    if (place >= 0 && place < options_.count) rows.batches.push_back(data_.train.batch(part.indices, data_.scale));
  }
  return rows;
}

}  // namespace tutti::training
