// A thread that reads the kernels' failures, makes the first one the communicator's, and ends the kernels of a
// communicator that has failed. It sleeps while nothing is under way. Needs the CUDA toolkit's headers.
//
// Threads: any; destroyed by the thread that made it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "collectives/device/kernel_engine.h"
#include "collectives/executor/cuda/executor.h"

namespace tutti {

class KernelWatchdog {
 public:
  /// `executor` and what `config` names outlive it.
  KernelWatchdog(const KernelEngine::Config& config, executor::cuda::DeviceExecutor& executor);
  ~KernelWatchdog();
  /// Once, before anything else. Errors: system, no thread can be had.
  Status begin();
  KernelWatchdog(const KernelWatchdog&) = delete;
  KernelWatchdog& operator=(const KernelWatchdog&) = delete;

  /// Wakes the thread: `calls` collectives are in streams by now.
  void wake(std::uint64_t calls);
  void set_timeout(std::int64_t ns) { timeout_ns_.store(ns); }
  /// Waits until what was started is done, for as long as a wait may last; after a failure, for the second in which
  /// kernels end that run. Returns false if something still runs, or stands behind other work of the caller's stream.
  bool wait_until_idle() const;

 private:
  void run();
  transport::DeviceCall own_call(std::uint64_t number) const;
  void report(const transport::DeviceVerdict& verdict);
  /// Has a peer passed host memory in place of the oldest call that is under way?
  void look_for_other_kind();

  const int rank_;
  const int size_;
  std::vector<const transport::Board*> boards_;  // by rank
  const bool segmented_;
  const std::function<std::string(int)> name_;
  executor::Health& health_;
  transport::Board& board_;
  executor::cuda::DeviceExecutor& executor_;
  std::atomic<std::int64_t> timeout_ns_;
  bool reported_ = false;       // of the thread
  std::uint64_t recorded_ = 0;  // of the thread: calls that the flight recorder shows as done

  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t launches_ = 0;  // guarded by mutex_
  std::uint64_t calls_ = 0;     // guarded by mutex_
  bool ending_ = false;         // guarded by mutex_
  std::thread thread_;          // last: it uses all of these
};

}  // namespace tutti
