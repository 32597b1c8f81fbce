// FullyShardedDataParallel for any torch::nn::Module: every rank keeps one part of each parameter, of its gradient and
// of its optimiser state, and gathers a part of the model just before that part computes.
//
//   auto model = std::make_shared<MyNet>();                      // an ordinary module, it never learns of this
//   tutti::training::FullyShardedDataParallel fsdp(*model, comm, {.units = by_block()});
//   torch::optim::AdamW optimizer(fsdp.parameters());            // of the shards; any that works element by element
//   for (...) {
//     fsdp.zero_grad();
//     loss(model->forward(x), y).backward();                     // returns with this rank's shard of the mean gradient
//     fsdp.clip_grad_norm(1.0);
//     optimizer.step();
//   }
//
// Shards: each parameter on its own, on dimension 0. Of d rows and n ranks, rank r has rows r*c to (r+1)*c - 1, where
//   c = ceil(d / n); rows past d are padding (zero, on the last ranks; some may have no row). A scalar has one row.
// Units: groups of parameters that are gathered together (units.h): the modules that `units` picks, each with the
//   parameters of its subtree that no unit inside it has; the rest is the root unit.
// How: every operator that this thread calls is seen before it runs (operator_watch.h). The first that takes a
//   parameter of a unit, or a view of one, waits for the unit's all-gather, which goes straight into the parameter's
//   own storage; the next unit, in the order of the pass before, is gathered meanwhile (`prefetch`). When another
//   unit's turn comes, the memory is given up again (Sharding::zero3). A hook behind each gradient counts; when a unit
//   has all of its gradients, their reduce-scatter starts, while backward goes on. A callback at the end of backward
//   waits for all.
// Sharing: a unit that is used again is gathered again, so results are right however a model uses its parameters; each
//   use out of turn costs a gather.
//   Writes to shards are seen as well, so a unit is gathered again after a step.
// Bytes (P in bytes, n ranks): gathers and reduce-scatters send (n-1)/n P each. zero1, zero2: one gather for each step
//   (before the next forward) and one reduce-scatter for each backward that communicates; with one of them per step
//   that is as much as DDP. zero3: two gathers for each forward and backward, but one of the root unit.
// Sources: Rajbhandari et al., "ZeRO", SC 2020; Zhao et al., "PyTorch FSDP", VLDB 2023; sharding each parameter on its
//   own: PyTorch's fully_shard.
// Bits: with `deterministic`, those of DistributedDataParallel in deterministic mode.
// Order of set-up: freeze parameters, move the module to its type, then this, then the optimizer. What is changed later
//   (frozen, typed, shaped, tied, replaced, given other memory) is refused by the next zero_grad() or backward. The
//   module's own parameters are for forward and backward only: read and write them under summon_full_parameters(); save
//   and optimise the shards.
// Hooks: those of the module's parameters run before the mean, also when they are added later. A shard's would never
//   run, and are refused.
// Lifetime: the module must outlive this object. After it is gone, the module's parameters stay whole if they were
//   summoned then; otherwise using them is an error that says so.
// Threads: as tutti::Communicator. Forward, backward and writes to the shards run on the thread that made this object,
//   which destroys it, too. Ranks may be threads of one process.
// Order of use: every rank uses the same units and writes to the same shards (also where it has no rows) in the same
//   order. Ranks in different steps are found in the first use of a parameter (step_exchange.h).
// Errors: tutti::Error, in one sentence that names rank and parameter; both communicators and the replicas' are
//   aborted, so that no rank hangs. After an error in forward or backward they cannot be used any more. For errors of
//   your own step: or_abort(fsdp.communicators(), ...) (abort.h).
// Limits: f32, f64, f16, bf16, dense and contiguous; on the CPU, or on another device by compute_device.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "training/fsdp/units.h"
#include "training/no_sync.h"
#include "training/tensors.h"
#include "tutti/tutti.hpp"

namespace tutti::training {

/// The state that is sharded over the ranks, by the names of the ZeRO paper.
enum class Sharding {
  zero1,  // optimiser state: gradients stay whole, the next forward gathers the updated parameters
  zero2,  // and gradients
  zero3,  // and parameters
};

/// Sharding::zero3: when a unit is resharded.
enum class Reshard {
  all_but_root,  // after forward and after backward; the root unit after backward only
  always,        // after forward and after backward
  never,         // after backward only: one gather less, for the memory of a whole model during the pass
};

/// The source of the parameters' values.
enum class Values {
  rank_0,    // every rank gets rank 0's
  own_rows,  // each rank's rows are right already: made under ShardInit (shard_init.h), or read from somewhere
};

struct FsdpOptions {
  UnitPolicy units = by_block();
  Sharding sharding = Sharding::zero3;
  Reshard reshard = Reshard::all_but_root;
  Values values = Values::rank_0;
  int prefetch = 1;  // units gathered ahead; 0: each when it is needed
  /// Ranks that hold the same shard of other groups (hybrid sharding): gradients are averaged over them too. A column
  /// of the mesh whose row is the communicator given to the constructor. Empty: none.
  Communicator replicas = {};
  /// The type to compute with and to gather; the shards keep the module's own (master weights). Undefined: the
  /// module's.
  std::optional<torch::ScalarType> compute_type = {};
  /// CPU offload: shards, their gradients and so the optimiser's state stay in host memory, where they travel; whole
  /// parameters, buffers, forward and backward are on this device. Gathers run ahead as ever, through pinned memory; a
  /// gradient is waited for before it is sent. The module comes on the CPU. Undefined: all is where the module is.
  std::optional<torch::Device> compute_device = {};
  /// The type in which gradients are added over the ranks. Undefined: the shard's (f32 for an f32 module).
  std::optional<torch::ScalarType> reduce_type = {};
  /// Same bits for any algorithm, lane count and placement: added in rank order.
  bool deterministic = false;
  /// A trained parameter without a gradient at the end of backward: refused by name, or (true) taken as zero, as DDP's
  /// UnusedParameters::find does. What no rank used has no gradient.
  bool allow_unused = false;
};

/// Bytes that this rank holds now.
struct FsdpMemory {
  std::size_t shards = 0;         // parameters: shards, or with zero1 and zero2 the whole ones that hold them
  std::size_t gradients = 0;      // shards of them, or with zero1 whole ones
  std::size_t gathered = 0;       // whole parameters, beside the shards
  std::size_t peak_gathered = 0;  // the most that was ever gathered at once
  std::size_t padding = 0;        // of shards: rows that are none of the model's
};

/// Since the object was made.
struct FsdpStats {
  std::uint64_t gathers = 0;         // of units
  std::uint64_t gathered_bytes = 0;  // whole size of what was gathered, padding included
  std::uint64_t reductions = 0;      // of units
  std::uint64_t reduced_bytes = 0;   // whole size of the gradients handed over, padding included
  double wait_seconds = 0;           // that this thread did nothing but wait for either
};

class FullyShardedDataParallel {
  struct State;

 public:
  /// Collective over `communicator` (and options.replicas). Errors: invalid_argument, among them a parameter that
  /// another such object or a DistributedDataParallel has.
  FullyShardedDataParallel(torch::nn::Module& module, Communicator communicator, const FsdpOptions& options = {});
  ~FullyShardedDataParallel();
  FullyShardedDataParallel(const FullyShardedDataParallel&) = delete;
  FullyShardedDataParallel& operator=(const FullyShardedDataParallel&) = delete;

  /// This rank's shard of each parameter, frozen ones too, in order of registration: leaves of shape [rows, ...] whose
  /// grad() backward sets. They keep their memory alive.
  std::vector<torch::Tensor> parameters() const;
  std::vector<NamedTensor> named_parameters() const;

  /// Sets all gradients to none, those of micro-batches under no_sync() too.
  void zero_grad();

  /// While one lives, backward adds to whole gradients on this rank and communicates none (their memory is that of
  /// DDP); the first backward without one reduces the sum. Without it, every backward adds to the gradients of the
  /// shards: more bytes, less memory. Must not outlive its maker.
  using NoSync = training::NoSync;
  [[nodiscard]] NoSync no_sync();

  /// Collective. What backward passes under no_sync() left becomes shards of its mean, as the last backward would have
  /// done it: for a pipeline, whose run is several backward passes.
  void reduce_gradients();

  /// Collective. clip.h's, of the shards: scales their gradients so that the norm of the whole gradient is at most
  /// `largest`; 0 only measures. Returns the norm before: infinite or not a number when gradients are, and then nothing
  /// is scaled. Errors: invalid_argument for a negative `largest`.
  double clip_grad_norm(double largest);

  /// While one lives, the module's parameters are whole. What was written to them goes back to the shards at its end,
  /// each rank's rows from that rank, if write_back; else it is lost (for that, zero1 and zero2 copy the shards). Not
  /// during forward or backward. Collective, its end is not.
  /// Errors: write_back with a compute_type that is not the module's type (it would round the shards).
  class FullParameters {
   public:
    FullParameters(FullParameters&& other) noexcept = default;
    FullParameters& operator=(FullParameters&&) = delete;
    ~FullParameters();

   private:
    friend class FullyShardedDataParallel;
    FullParameters(std::weak_ptr<State> state, bool write_back) : state_(std::move(state)), write_back_(write_back) {}
    std::weak_ptr<State> state_;
    bool write_back_;
  };
  [[nodiscard]] FullParameters summon_full_parameters(bool write_back = false);

  /// Collective. The values of parameters()[index], whole and of the shard's type, on every rank.
  torch::Tensor full_parameter(std::size_t index);
  /// Collective. The same for its gradient, which every rank must have.
  torch::Tensor full_gradient(std::size_t index);

  /// Names of the units' modules, in the order in which forward used them; the root unit's is "".
  std::vector<std::string> units() const;
  FsdpMemory memory() const;
  FsdpStats stats() const;
  /// Returns the traffic of both communicators, as Communicator::traffic().
  Traffic traffic() const;
  /// Returns all communicators that ranks wait in: the given one, the one that gradients travel by, the replicas'.
  std::vector<Communicator> communicators() const;

 private:
  std::shared_ptr<State> state_;  // FullParameters asks whether it still lives
};

}  // namespace tutti::training
