// The order in which the units of FullyShardedDataParallel are unsharded and resharded.
//
// How: a unit is gathered before an operator uses it, and the next one is gathered meanwhile. A unit is resharded,
// which
//   frees the memory of its full parameters, when operators use other units.
// Ranks: all start the same gathers in the same order. The order of operators decides, never time.
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

class UnshardSchedule {
 public:
  struct Options {
    bool reshards = true;        // Sharding::zero3
    bool after_forward = true;   // not Reshard::never
    bool root_reshards = false;  // Reshard::always
    int prefetch = 1;
  };
  struct Stats {
    std::uint64_t gathers = 0, bytes = 0;
    std::size_t peak_bytes = 0;  // of full parameters beside the shards
    double wait_seconds = 0;
  };

  /// Watches the operators of this thread from now on. `units`: the root's comes first. `units` and `steps` must
  /// outlive this object. When a gather fails, all of `comms` are aborted.
  UnshardSchedule(std::vector<std::unique_ptr<Unit>>& units, StepExchange& steps, std::vector<Communicator> comms,
                  const Options& options);

  /// The caller says that all of the unit's gradients of a backward pass have come.
  void on_gradients(std::size_t unit);
  /// Ends the backward pass: reshards all units.
  void end_pass();

  /// Keeps all units unsharded until reshard_all().
  void unshard_all();
  void reshard_all();
  bool holds_all() const { return held_; }

  const std::vector<std::size_t>& order() const { return order_; }  // as forward first used them, without the root
  std::size_t gathered_bytes() const;
  const Stats& stats() const { return stats_; }

 private:
  void before(const c10::OperatorHandle& op, const torch::jit::Stack& arguments);
  void use(const std::vector<std::size_t>& used);
  void end_with_backward();
  void set_in_use(const std::vector<std::size_t>& used);
  bool reshards_after_use(std::size_t unit) const { return unit != 0 || options_.root_reshards; }
  void start_gather(std::size_t unit);
  void finish_gather(std::size_t unit);
  void prefetch(std::size_t unit);
  void reshard(std::size_t unit);

  std::vector<std::unique_ptr<Unit>>& units_;
  StepExchange& steps_;
  std::vector<Communicator> comms_;
  Options options_;
  std::unordered_map<const void*, std::size_t> unit_of_storage_, unit_of_shard_;
  std::vector<std::size_t> order_;
  std::vector<std::size_t> in_use_;  // several when one operator takes several
  std::vector<bool> has_gradients_;
  std::pair<std::size_t, bool> ahead_of_ = {0, false};  // unit, in backward: what was prefetched for last
  bool in_backward_ = false;                            // at the last use; its end reshards all units
  bool held_ = false;
  Stats stats_;
  OperatorWatch watch_;  // last: from its making on, operators come in
};

}  // namespace tutti::training
