// What is under way on a communicator, and the first failure of it.
// How: the making of a communicator counts as under way from the start, until the first end().
// Errors: state() gives ncclInProgress, or the first failure. A revocation is no failure, nor is what fails by it.
// Threads: any.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "nccl/errors.h"

namespace tutti::nccl {

class Progress {
 public:
  /// Something is under way until end() has been called as often. The first failure stays.
  void begin();
  void end(const Outcome& outcome);
  /// Keeps a failure that finishes the communicator; others change nothing.
  void note(const Outcome& outcome);

  /// ok: calls may be made. ncclInProgress while something is under way; else the first failure.
  Outcome state() const;
  /// Waits until nothing is under way.
  void wait_idle() const;

  /// While it lives, a blocking call runs: wait_revoked() waits for that.
  class Caller {
   public:
    explicit Caller(Progress& progress) : progress_(&progress) { progress.callers_.fetch_add(1); }
    Caller(Caller&& other) noexcept : progress_(std::exchange(other.progress_, nullptr)) {}
    Caller& operator=(Caller&&) = delete;
    ~Caller() {
      if (progress_ != nullptr && progress_->callers_.fetch_sub(1) == 1 && progress_->revoked_.load()) {
        progress_->callers_.notify_all();
      }
    }

   private:
    Progress* progress_;
  };

  /// From here on failures are the revocation's.
  void revoke() { revoked_.store(true); }
  bool revoked() const { return revoked_.load(); }
  /// Waits until calls have ended and nothing is under way, then drops the failure. REQUIRES: revoked().
  void wait_revoked();

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  int under_way_ = 1;  // guarded by mutex_
  Outcome failure_;    // guarded by mutex_
  std::atomic<int> callers_{0};
  std::atomic<bool> revoked_{false};
};

}  // namespace tutti::nccl
