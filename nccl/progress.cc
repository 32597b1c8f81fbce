#include "nccl/progress.h"

namespace tutti::nccl {

void Progress::begin() {
  const std::lock_guard lock(mutex_);
  ++under_way_;
}

void Progress::end(const Outcome& outcome) {
  const std::lock_guard lock(mutex_);
  if (!outcome.ok() && failure_.ok() && !revoked()) failure_ = outcome;
  --under_way_;
  changed_.notify_all();
}

void Progress::note(const Outcome& outcome) {
  if (!outcome.finishes) return;
  const std::lock_guard lock(mutex_);
  if (failure_.ok() && !revoked()) failure_ = outcome;
}

Outcome Progress::state() const {
  const std::lock_guard lock(mutex_);
  if (under_way_ > 0) return {ncclInProgress, "something that was called before is still under way"};
  return failure_;
}

void Progress::wait_idle() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return under_way_ == 0; });
}

void Progress::wait_revoked() {
  for (int callers; (callers = callers_.load()) > 0;) callers_.wait(callers);
  wait_idle();
  const std::lock_guard lock(mutex_);
  failure_ = {};
}

}  // namespace tutti::nccl
