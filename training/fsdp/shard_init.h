// Parameters initialised shard by shard: while a guard lives, a large parameter is whole only while it is being filled;
// then this rank's rows stay, and the memory of the others' goes back to the system. So no rank ever holds a whole
// model.
//
//   torch::manual_seed(seed);                                // the same on every rank
//   std::optional<ShardInit> guard(std::in_place, comm.rank(), comm.size());
//   Gpt model(config);                                       // an ordinary constructor
//   guard.reset();
//   FullyShardedDataParallel fsdp(*model, comm, {.values = Values::own_rows});
//
// Values: those of the ordinary constructor, to the bit: the same numbers are drawn in the same order.
// How: an operator that fills a parameter (normal_, uniform_, zero_, ...) is seen before it runs (operator_watch.h).
//   With the next operator that does not take it, the pages of other ranks' rows are freed. It may be filled again.
//   Pages are kept whole, so up to two more pages than the rows stay.
// What stays whole: parameters below 1 MiB, those that need no gradient when they are filled, buffers, and what is
//   filled through a view.
// Between guard and FullyShardedDataParallel, other ranks' rows must not be read.
// Errors: invalid_argument when an operator reads a parameter whose rows are gone (an initialisation that looks at the
//   whole after something else was filled); such a model needs the ordinary way.
// Threads: as OperatorWatch. Ranks that are threads share LibTorch's random generator: make their models in turn.
#pragma once

#include <torch/torch.h>

#include <unordered_map>

#include "training/fsdp/operator_watch.h"

namespace tutti::training {

class ShardInit {
 public:
  ShardInit(int rank, int ranks);
  ~ShardInit();
  ShardInit(const ShardInit&) = delete;
  ShardInit& operator=(const ShardInit&) = delete;

 private:
  void before(const c10::OperatorHandle& op, const torch::jit::Stack& arguments);
  void cut();

  int rank_, ranks_;
  torch::Tensor filled_;                                // by the operator before
  std::unordered_map<const void*, torch::Tensor> cut_;  // by storage; kept, so that no other tensor gets their place
  OperatorWatch watch_;
};

}  // namespace tutti::training
