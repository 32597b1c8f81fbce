// The gradients of FullyShardedDataParallel in a backward pass: counts them as backward produces them, starts each
// unit's reduction when it is complete, and waits for all at the end.
//
// Reductions start in reverse order of registration, the root unit's last, whatever the order of arrival, so that all
// ranks make the same calls. They have a communicator of their own: gathers go on meanwhile, in an order of theirs.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "training/fsdp/unit.h"
#include "training/fsdp/unshard_schedule.h"
#include "tutti/tutti.hpp"

namespace tutti::training {

class GradientPass {
 public:
  struct Stats {
    std::uint64_t reductions = 0, bytes = 0;
    double wait_seconds = 0;
  };

  /// Puts a hook behind each parameter. `units`, `schedule` and `steps` must outlive this object. After an error, all
  /// of `comms` are aborted: others wait, or will, in a call that this rank never makes. `before_pass` runs when a pass
  /// begins.
  GradientPass(std::vector<std::unique_ptr<Unit>>& units, UnshardSchedule& schedule, StepExchange& steps,
               Communicator reductions, Communicator replicas, std::vector<Communicator> comms,
               std::function<void()> before_pass, bool allow_unused);
  ~GradientPass();
  GradientPass(const GradientPass&) = delete;
  GradientPass& operator=(const GradientPass&) = delete;

  int* no_sync_depth() { return &no_sync_depth_; }
  bool is_open() const { return open_; }
  /// Collective, outside of backward: reduces what passes under no_sync left.
  void reduce();
  const Stats& stats() const { return stats_; }

 private:
  class Hook;
  struct Progress {           // of a unit
    std::size_t pending = 0;  // trained parameters without a gradient yet
    std::vector<bool> has_gradient;
    bool reduces = false;  // its reduction has started
  };

  [[noreturn]] void fail(const std::string& what) const;
  void on_gradient(std::size_t unit, std::size_t parameter);
  void begin();
  void open();
  void close();
  void start_reductions();
  void start_replica_means();
  void take_stock();
  std::vector<std::vector<bool>> find_unused();
  std::size_t nth(std::size_t place) const { return units_.size() - 1 - place; }

  std::vector<std::unique_ptr<Unit>>& units_;
  UnshardSchedule& schedule_;
  StepExchange& steps_;
  Communicator reductions_, replicas_;
  std::vector<Communicator> comms_;
  std::function<void()> before_pass_;
  bool allow_unused_;
  std::vector<Progress> progress_;
  std::size_t next_reduction_ = 0, next_replica_mean_ = 0;  // places in the order of reductions
  int no_sync_depth_ = 0;
  bool open_ = false, reduces_ = false;
  int task_ = -1;  // the engine's number of the pass under way
  Stats stats_;
};

}  // namespace tutti::training
