// When which unit of FullyShardedDataParallel is whole: gathers each before it is used, the next one meanwhile, and
// gives up the memory of those whose turn is over.
//
// All ranks start the same gathers in the same order: what decides is the order of operators, never time.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "training/fsdp/operator_watch.h"
#include "training/fsdp/step_exchange.h"
#include "training/fsdp/unit.h"

namespace tutti::training {

class UnitTurns {
 public:
  struct Options {
    bool gives_up = true;           // Sharding::zero3
    bool after_forward = true;      // not Reshard::never
    bool root_takes_turns = false;  // Reshard::always
    int prefetch = 1;
  };
  struct Stats {
    std::uint64_t gathers = 0, bytes = 0;
    std::size_t peak_bytes = 0;  // of whole parameters beside the shards
    double wait_seconds = 0;
  };

  /// Watches the operators of this thread from now on. `units`: the root's first; they and `steps` must outlive this
  /// object. When a gather fails, all of `comms` are aborted.
  UnitTurns(std::vector<std::unique_ptr<Unit>>& units, StepExchange& steps, std::vector<Communicator> comms,
            const Options& options);

  /// All of the unit's gradients of a backward pass have come.
  void on_gradients(std::size_t unit);
  /// The backward pass is over.
  void end_pass();

  /// All units whole until release_all().
  void hold_all();
  void release_all();
  bool holds() const { return held_; }

  const std::vector<std::size_t>& order() const { return order_; }  // as forward first used them, without the root
  std::size_t gathered_bytes() const;
  const Stats& stats() const { return stats_; }

 private:
  void before(const c10::OperatorHandle& op, const torch::jit::Stack& arguments);
  void use(const std::vector<std::size_t>& used);
  void end_with_backward();
  void take_turn(const std::vector<std::size_t>& used);
  bool takes_turns(std::size_t unit) const { return unit != 0 || options_.root_takes_turns; }
  void start_gather(std::size_t unit);
  void finish_gather(std::size_t unit);
  void prefetch(std::size_t unit);
  void give_up(std::size_t unit);

  std::vector<std::unique_ptr<Unit>>& units_;
  StepExchange& steps_;
  std::vector<Communicator> comms_;
  Options options_;
  std::unordered_map<const void*, std::size_t> unit_of_storage_, unit_of_shard_;
  std::vector<std::size_t> order_;
  std::vector<std::size_t> turn_;  // units whose turn it is: several when an operator takes several
  std::vector<bool> has_gradients_;
  std::pair<std::size_t, bool> ahead_of_ = {0, false};  // unit, in backward: what was prefetched for last
  bool in_backward_ = false;                            // at the last use; its end is one of all turns
  bool held_ = false;
  Stats stats_;
  OperatorWatch watch_;  // last: from its making on, operators come in
};

}  // namespace tutti::training
