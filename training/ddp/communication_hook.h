// What becomes of a bucket of gradients between backward and the optimiser: by default their mean over the ranks.
//
//   DdpOptions options;
//   options.hook = compress_gradients(torch::kBFloat16);   // half the bytes on the wire
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <functional>
#include <memory>

#include "tutti/tutti.hpp"

namespace tutti::training {

/// One bucket of one backward pass.
struct GradientBucket {
  std::size_t index = 0;    // in the order in which buckets start
  torch::Tensor gradients;  // [elements]; this rank's sum before, the mean of all ranks' after. What travels best.
};

/// One object for each rank and model. start() is called for the buckets 0, 1, ... of each pass, the same on every
/// rank; finish() for each of them, in that order, when backward has ended. Both run on the thread that calls backward.
class CommunicationHook {
 public:
  virtual ~CommunicationHook() = default;
  /// Starts the exchange and does not wait for it. Every rank must make the same calls. For gradients on a device the
  /// current stream is one for this, beside backward's: calls take in_stream_of(bucket.gradients) (training/streams.h).
  virtual Work start(Communicator& communicator, GradientBucket& bucket) = 0;
  /// Finishes the bucket after that work has ended.
  virtual void finish(GradientBucket&) {}
};

/// Makes a rank's own hook: options are copied from rank to rank where ranks are threads, hooks have state.
using MakeCommunicationHook = std::function<std::unique_ptr<CommunicationHook>()>;

/// Divides by the number of ranks, rounds to `type` (torch::kFloat16 or torch::kBFloat16), sums in that type (each sum
/// itself in f32) and widens. Dividing first keeps f16 from overflowing. Buckets of that type already are averaged as
/// ever. Errors: invalid_argument for another type.
MakeCommunicationHook compress_gradients(torch::ScalarType type);

}  // namespace tutti::training
