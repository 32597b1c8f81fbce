// Groups of sends and receives that were started asynchronously, on their way from the caller's thread to the
// communicator's.
// How: those that are started while others are still under way join them (p2p_queue.h).
// Threads: offer() from the caller's thread, the rest from the queue's.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "collectives/call.h"
#include "collectives/calls/async_queue.h"
#include "collectives/executor/p2p/transfers.h"

namespace tutti {

struct StartedGroup {
  std::vector<Transfer> transfers;
  std::shared_ptr<QueuedWork> work = std::make_shared<QueuedWork>();
  executor::Batch batch;
  std::uint64_t number = 0;  // in the flight recorder
  bool begun = false;
};

/// The groups that one operation of the queue runs.
class StartedGroups {
 public:
  using Groups = std::vector<std::unique_ptr<StartedGroup>>;

  /// Adds a group to the operation. Returns false, and leaves the group, when the operation has ended.
  bool offer(std::unique_ptr<StartedGroup>& group) {
    const std::lock_guard lock(mutex_);
    if (closed_) return false;
    groups_.push_back(std::move(group));
    news_.store(true, std::memory_order_release);
    return true;
  }
  /// Is true while there are groups to take.
  const std::atomic<bool>& news() const { return news_; }
  Groups take() {
    const std::lock_guard lock(mutex_);
    news_.store(false, std::memory_order_relaxed);
    return std::exchange(groups_, {});
  }
  /// Refuses all further groups, and returns those that are left.
  Groups close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    return std::exchange(groups_, {});
  }
  /// Refuses all further groups if none is left. Returns whether it does.
  bool close_if_empty() {
    const std::lock_guard lock(mutex_);
    if (!groups_.empty()) return false;
    closed_ = true;
    return true;
  }

 private:
  std::mutex mutex_;
  Groups groups_;        // guarded by mutex_
  bool closed_ = false;  // guarded by mutex_
  std::atomic<bool> news_{false};
};

}  // namespace tutti
