// What the baselines share: start() runs calls in order, those of host memory on a thread of the communicator's own and
// those of a stream at once, and what no baseline has is refused. A baseline implements execute() and execute_group().
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "base/status.h"
#include "collectives/communicator_interface.h"

namespace tutti {

class OrderedCommunicator : public CommunicatorInterface {
 public:
  ~OrderedCommunicator() override;

  Status run(const Call& call) final;
  Status run_group(std::span<const Transfer> transfers) final;
  Result<std::shared_ptr<PendingWork>> start(const Call& call) final;
  Result<std::shared_ptr<PendingWork>> start_group(std::span<const Transfer> transfers) final;

  Result<std::shared_ptr<CommunicatorInterface>> split(int color, int key, const std::string& name) override;
  Result<std::shared_ptr<CommunicatorInterface>> shrink() override;
  Status set_timeout(std::chrono::milliseconds timeout) override;
  void abort(const std::string& reason) override;  // ends the process: none of them can do better
  Status status() const override { return {}; }    // a failure ends the process, or its call says it

  Explanation explain_last_call() const override;
  MemoryReport memory() const override { return {}; }
  Traffic traffic() const override { return traffic_; }
  std::string flight_recorder_text() const override { return {}; }
  std::string flight_recorder_json() const override { return "[]"; }

 protected:
  explicit OrderedCommunicator(std::string name) : name_(std::move(name)) {}

  /// Never called from two threads at once. Arguments that no baseline serves were refused before.
  virtual Status execute(const Call& call) = 0;
  virtual Status execute_group(std::span<const Transfer> transfers) = 0;

  /// Whether execute() puts the call into a stream. The caller then expects it in the stream when start() returns, so
  /// it is executed at once, behind the calls that were started before it.
  virtual bool goes_into_a_stream(const Call& /*call*/) const { return false; }
  virtual bool goes_into_a_stream(std::span<const Transfer> /*transfers*/) const { return false; }

  /// Waits for what was started and ends the thread. Every derived destructor calls it first.
  void stop();

  /// Whether premul_sum is served; else it is refused.
  virtual bool scales() const { return false; }

  /// Waits until all that was started is done.
  void drain();

  /// "backend openmpi: all_reduce of bf16 is not supported".
  Status lacks(const std::string& what) const;

  const std::string name_;

 private:
  class Item;
  std::shared_ptr<PendingWork> enqueue(std::function<Status()> body);
  std::shared_ptr<PendingWork> at_once(std::function<Status()> body);
  void work();
  Status refuse(const Call& call) const;

  Traffic traffic_;
  std::atomic<int> pending_{0};  // started, not finished: lets run() pass without the lock
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Item>> queue_;  // guarded by mutex_
  bool stopping_ = false;                    // guarded by mutex_
  std::thread thread_;                       // made by the first start()
};

/// Whether the caller's pointers make a call in place, by tutti.hpp's rule for `collective`.
bool is_in_place(const Call& call, int rank);

/// Divides `count` elements by `divisor`, as the user of a library without an average writes it.
/// REQUIRES: an integer type, f32 or f64.
void divide(void* data, std::size_t count, DataType type, int divisor);

}  // namespace tutti
