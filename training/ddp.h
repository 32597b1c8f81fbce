// DistributedDataParallel for any torch::nn::Module: every rank holds the whole model and works on its own rows; the
// gradients are averaged over the ranks while backward is still running.
//
//   auto model = std::make_shared<MyNet>();                      // an ordinary module, it never learns of this
//   tutti::training::DistributedDataParallel ddp(*model, comm);  // now all ranks hold rank 0's parameters
//   torch::optim::AdamW optimizer(model->parameters());
//   for (...) {
//     ddp.zero_grad();
//     loss(model->forward(x), y).backward();                     // returns with the mean of all ranks' gradients
//     optimizer.step();
//   }
//
// How: gradients live in buckets (bucket.h) of memory that peers reach without a copy (tutti::allocate), and each
//   parameter's .grad() lies in its bucket. A hook behind each gradient counts; when a bucket is complete and all
//   earlier ones were started, its all-reduce starts. The same order on every rank, whatever the order of arrival. A
//   callback at the end of backward waits for all of them.
// Gradients: with ddp.zero_grad() (or optimizer.zero_grad(false)) nothing is ever copied. Setting them to none, as the
//   optimizer's zero_grad() does by default, works too: the hook copies the new gradient into the bucket and puts
//   the bucket's back.
// Order of set-up: move the module to its final type and freeze parameters first, then make this, then the optimizer.
// Lifetime: the module must outlive this object. Gradients stay valid after it is gone.
// Threads: as tutti::Communicator; backward calls count as use. Ranks may be threads of one process (then each calls
//   torch::set_num_threads for itself: MKL's bits depend on it).
// Errors: tutti::Error, in one sentence that names rank and parameter. When a parameter gets no gradient in a backward
//   pass, that rank aborts the communicator, so that all ranks fail with the same sentence and none hangs. After an
//   error in backward the communicator cannot be used any more.
// Limits: CPU tensors of f32, f64, f16, bf16; a backward pass inside another one (re-entrant) is refused.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "training/bucket.h"
#include "tutti/tutti.hpp"

namespace tutti::training {

struct DdpOptions {
  std::size_t first_bucket_bytes = std::size_t{1} << 20;
  std::size_t bucket_bytes = std::size_t{25} << 20;
  /// Same bits for any algorithm, lane count and placement, as if one process added the ranks' gradients in rank order.
  bool deterministic = false;
};

/// Since the object was made.
struct DdpStats {
  std::uint64_t passes = 0;      // backward passes whose gradients were averaged
  std::uint64_t reductions = 0;  // all-reduces, one per bucket and pass
  std::uint64_t bytes = 0;       // of gradients handed to them
  double wait_seconds = 0;       // that backward's thread had nothing left to do but wait for them
};

class DistributedDataParallel {
 public:
  /// Collective. Gives every rank rank 0's parameters and buffers, and checks by hash that all hold the same bytes
  /// then. Errors: invalid_argument when ranks gave different models, or a parameter already belongs to another such
  /// object.
  DistributedDataParallel(torch::nn::Module& module, Communicator communicator, const DdpOptions& options = {});
  ~DistributedDataParallel();
  DistributedDataParallel(const DistributedDataParallel&) = delete;
  DistributedDataParallel& operator=(const DistributedDataParallel&) = delete;

  /// While one lives, backward only adds to this rank's gradients; the first backward without one averages the sum.
  /// Micro-batches 1 to k-1 of an accumulated step go under it. May be nested. Must not outlive its maker.
  class NoSync {
   public:
    NoSync(NoSync&& other) noexcept : depth_(std::exchange(other.depth_, nullptr)) {}
    NoSync& operator=(NoSync&&) = delete;
    ~NoSync() {
      if (depth_ != nullptr) --*depth_;
    }

   private:
    friend class DistributedDataParallel;
    explicit NoSync(int* depth) : depth_(depth) { ++*depth_; }
    int* depth_;
  };
  [[nodiscard]] NoSync no_sync();

  /// Sets all gradients to zero and keeps them in the buckets.
  void zero_grad();

  /// Collective. Buffers (running statistics and the like) are shared once at the start; this does it again.
  void broadcast_buffers();

  /// Collective. Throws, on every rank, the name of the first parameter or buffer whose bytes differ from rank 0's, and
  /// the rank.
  void check_equal();

  const std::vector<Bucket>& buckets() const;
  DdpStats stats() const;

 private:
  struct State;
  class Hook;
  std::unique_ptr<State> state_;
};

}  // namespace tutti::training
