// The programs of a communicator's calls on device memory, made when a call is new and kept for the next ones like it.
// Threads: one at a time. Needs the CUDA toolkit's headers.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "collectives/device/engine_setup.h"
#include "collectives/device/kernel_engine.h"
#include "collectives/executor/cuda/executor.h"
#include "collectives/planner/plan_cache.h"
#include "collectives/planner/selection.h"

namespace tutti {

class ProgramCache {
 public:
  using Program = std::shared_ptr<const executor::cuda::DeviceProgram>;

  /// The programs of a kind of call.
  struct Entry {
    Program first;
    Program if_plain;                                   // when some rank's buffer is out of reach; null: first
    Program if_in_place;                                // when some rank is in place; null: no matter
    bool opens = false;                                 // ranks touch each other's buffers
    std::uint32_t algorithm = transport::kNoAlgorithm;  // row of the algorithm table
    std::size_t input_bytes = 0;
    std::size_t output_bytes = 0;
    Explanation explanation;
  };

  /// Errors: invalid_argument (TUTTI_SELECTION).
  static Result<std::unique_ptr<ProgramCache>> create(const EngineSetup& setup,
                                                      executor::cuda::DeviceExecutor& executor);

  /// Errors: as the planner; memory_limit (no room for the program).
  Result<std::shared_ptr<const Entry>> get(const KernelEngine::Request& request);
  /// The list of a group of messages.
  Result<Program> p2p(std::span<const Transfer> transfers);
  /// How long to wait for kernels when there is no room for a program while they run. Any thread.
  void set_timeout(std::int64_t ns) { timeout_ns_.store(ns); }

 private:
  using Key = std::tuple<Collective, DataType, ReduceOp, int, std::size_t, std::size_t, bool, std::string>;

  ProgramCache(const EngineSetup& setup, executor::cuda::DeviceExecutor& executor, planner::Selection selection);
  Result<std::shared_ptr<const Entry>> prepare(const KernelEngine::Request& request);
  int strips_for(const plan::Plan& plan, std::size_t bytes) const;
  Result<Program> program_for(const KernelEngine::Request& request, const planner::Demand& demand,
                              Explanation* explanation, bool* opens);
  Result<Program> upload(std::vector<std::byte> flat);
  void retire_entries();
  void retire_p2p();
  void drop_retired();

  const EngineSetup& setup_;
  const int size_;
  executor::cuda::DeviceExecutor& executor_;
  const planner::Selection selection_;
  planner::PlanCache plans_;
  std::map<Key, std::shared_ptr<const Entry>> entries_;
  std::map<std::string, Program> p2p_;                 // lists, by what they say
  std::vector<std::shared_ptr<const Entry>> retired_;  // until no kernel has them
  std::atomic<std::int64_t> timeout_ns_{0};
};

}  // namespace tutti
