// The communicator's own thread: runs operations in the order in which they were started.
// Errors: system, when the first operation is started and no thread can be had.
// Threads: start(), post() and wait_idle() from one thread at a time; idle() and waits_since_ns() from any. Operations
//   and callbacks run on the queue's thread. A QueuedWork may be used by any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "collectives/communicator_interface.h"

namespace tutti {

/// A PendingWork that is finished from outside.
class QueuedWork final : public PendingWork {
 public:
  bool wait_for(std::chrono::nanoseconds limit) override;
  Status status() const override;
  void then(std::function<void()> callback) override;
  /// Done; what then() has hung on it is for the caller to call.
  using Callbacks = std::vector<std::function<void()>>;
  [[nodiscard]] Callbacks settle(Status status);
  void finish(Status status) {
    for (const auto& callback : settle(std::move(status))) callback();
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable finished_;
  bool done_ = false;    // guarded by mutex_
  Status status_;        // guarded by mutex_
  Callbacks callbacks_;  // guarded by mutex_; until done
};

/// Work that was done at once.
std::shared_ptr<PendingWork> finished_work(Status status);

/// Starts its thread with the first operation.
class AsyncQueue {
 public:
  AsyncQueue() = default;
  /// Finishes what was started.
  ~AsyncQueue();
  AsyncQueue(const AsyncQueue&) = delete;
  AsyncQueue& operator=(const AsyncQueue&) = delete;

  /// Errors: system (no thread can be had).
  Result<std::shared_ptr<PendingWork>> start(std::function<Status()> operation);
  /// An operation for several works. It may finish some while it runs; those that it returns are finished when it no
  /// longer counts as under way.
  using Endings = std::vector<std::pair<std::shared_ptr<QueuedWork>, Status>>;
  Status post(std::function<Endings()> operation);
  /// Nothing is under way; one load.
  bool idle() const { return pending_.load(std::memory_order_acquire) == 0; }
  /// Waits until all that was started is done.
  void wait_idle() {
    if (idle()) return;
    const CallerWaits waits(*this);
    wait_for_idle();
  }
  /// Returns how many operations have been started.
  std::uint64_t started() const { return started_; }

  /// Marks that the caller's thread waits for the queue, while it exists.
  class CallerWaits {
   public:
    explicit CallerWaits(AsyncQueue& queue) : queue_(queue) { queue.waits_since_ns_.store(now_ns()); }
    ~CallerWaits() { queue_.waits_since_ns_.store(0); }
    CallerWaits(const CallerWaits&) = delete;
    CallerWaits& operator=(const CallerWaits&) = delete;

   private:
    AsyncQueue& queue_;
  };
  /// Returns since when the caller's thread has waited for the queue, as now_ns(); 0: it does not. Any thread.
  std::int64_t waits_since_ns() const { return waits_since_ns_.load(); }

 private:
  void wait_for_idle();
  void loop();

  std::atomic<int> pending_{0};
  std::atomic<std::int64_t> waits_since_ns_{0};
  std::uint64_t started_ = 0;  // of the thread that starts operations
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<Endings()>> operations_;  // guarded by mutex_
  bool ending_ = false;                              // guarded by mutex_
  std::thread thread_;
};

}  // namespace tutti
