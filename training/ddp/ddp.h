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
// Changes: zero_grad() and each pass that communicates check that parameters and buffers are still the module's own.
//   Parameters must be trained, typed, shaped, placed and tied as they were when this object was made. After such a
//   change make another one. Where the optimiser's own zero_grad() begins a step, backward finds the change, and an
//   error that forward throws before is that rank's own. Hooks that are added later run before the mean, as others do.
// Not seen: what one rank alone does to values or gradients between backward and the optimiser's step, or by giving a
//   parameter other memory. Only a look at all bytes would show it: check_equal().
// Backward twice through one graph: each pass averages the sum so far. A graph that keeps a buffer cannot go twice, as
//   rank 0's buffers are written behind the first pass: set broadcast_buffers to false for that.
// Errors: tutti::Error, in one sentence that names rank and parameter. When a parameter gets no gradient in a backward
//   pass (and DdpOptions::unused does not allow that), that rank aborts the communicator, so that all ranks fail with
//   the same sentence and none hangs. After an error in backward the communicator cannot be used any more.
// Several: two models in one backward pass, or in two threads at once, take a communicator each (Communicator::split),
//   since calls of one communicator have one order.
// Limits: tensors of f32, f64, f16, bf16. Refused are a backward pass inside another one (re-entrant), one with
//   create_graph, and a sparse gradient.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "training/ddp/bucket.h"
#include "training/ddp/communication_hook.h"
#include "training/no_sync.h"
#include "tutti/tutti.hpp"

namespace tutti::training {

/// The meaning of a trained parameter without a gradient at the end of a backward pass.
enum class UnusedParameters {
  refuse,  // an error, which names it and the rank
  find,    // allowed, and different ones in each pass: buckets with one start at the end of backward, and one small
           // all-reduce tells which were used nowhere
  fixed,   // allowed, the same ones in each pass (each rank may have its own): found in the first pass, then free
};

struct DdpOptions {
  std::size_t first_bucket_bytes = std::size_t{1} << 20;
  std::size_t bucket_bytes = std::size_t{25} << 20;
  /// Same bits for any algorithm, lane count and placement, as if one process added the ranks' gradients in rank order.
  bool deterministic = false;
  /// A parameter that a rank did not use counts as a gradient of zero there. One that no rank used keeps the gradient
  /// that it had before, or none: the optimiser treats it as in one process.
  UnusedParameters unused = UnusedParameters::refuse;
  /// At the end of each pass that communicates, every rank gets rank 0's buffers (running statistics and the like).
  bool broadcast_buffers = true;
  MakeCommunicationHook hook;  // in place of the mean
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
  using NoSync = training::NoSync;
  [[nodiscard]] NoSync no_sync();

  /// Collective. Averages what the gradients hold now. For a step all of whose backward passes ran under no_sync(), as
  /// those of a pipeline must (pipeline.h), and for a rank whose step has no rows. A parameter without a gradient
  /// counts as zero.
  void average_gradients();

  /// Sets all gradients to zero and keeps them in the buckets. Begins a step: where a rank made one without any
  /// gradient and the others did not, the next pass ends on every rank with Code::mismatch and that rank's number.
  /// With an optimiser that changes parameters by data(), as LibTorch's SGD does, all ranks call it equally often.
  /// Errors: a change of the model, as above, before forward meets it.
  void zero_grad();

  /// Collective. Rank 0's, to every rank: for buffers that changed outside a backward pass.
  void broadcast_buffers();

  /// Collective. Throws, on every rank, the name of the first parameter or buffer whose bytes differ from rank 0's, and
  /// the rank.
  void check_equal();

  /// Names of the trained parameters that this rank did not use in its last pass that communicated.
  std::vector<std::string> unused_parameters() const;
  const std::vector<Bucket>& buckets() const;
  DdpStats stats() const;

 private:
  friend class Join;
  struct State;
  std::unique_ptr<State> state_;
};

/// Ranks with different numbers of batches, and batches of different sizes. A rank that has run out takes part in the
/// others' steps with gradients of zero, so it stays a true replica; and every gradient is divided by the true number
/// of samples of all ranks, not by the number of ranks.
///
///   Join join(ddp);
///   while (next(batch)) {
///     const double weight = join.weigh(batch.rows);       // of this rank's mean in the mean over all samples
///     ddp.zero_grad();
///     (loss(batch) * weight).backward();                  // loss: the mean over this rank's rows
///     optimizer.step();
///   }
///   join.finish([&] { optimizer.step(); });               // until the last rank is through
///
/// Tokens: where the loss is a mean over tokens, count those.
///
/// A batch without rows: weigh(0), and average_gradients() in place of backward.
///
/// Micro-batches: weigh() once for each step, with the count of all of them. Ranks call one or the other once per step.
class Join {
 public:
  explicit Join(DistributedDataParallel& ddp) : ddp_(ddp) {}
  /// Collective with weigh() or finish() of the others: an all-gather of 8 bytes. Errors: invalid_argument for a count
  /// below 0, on every rank.
  double weigh(std::int64_t count);
  /// Collective. `update` runs once for each step that the others still make.
  void finish(const std::function<void()>& update);
  /// Samples of all ranks in the step under way.
  std::int64_t total() const { return total_; }

 private:
  static constexpr std::int64_t kRanOut = -1;
  bool exchange(std::int64_t count);

  DistributedDataParallel& ddp_;
  std::int64_t total_ = 0;
};

}  // namespace tutti::training
