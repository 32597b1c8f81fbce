#include "csrc/execution/work.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/base/callbacks.h"
#include "csrc/base/signals.h"

namespace tutti_torch {

namespace {

// The base class allocates for a title, which only a profiler looks at.
const char* if_profiled(const char* title) {
  return at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE).has_value() ? title : nullptr;
}

// A timeout of a year is none: some callers say so, and the clock's range ends.
Clock::time_point deadline_after(std::chrono::milliseconds timeout) {
  return timeout < std::chrono::hours(24 * 365) ? Clock::now() + timeout : Clock::time_point::max();
}

std::optional<std::vector<at::Tensor>> shapes_of(const char* title, const Tensors& tensors) {
  if (title == nullptr) return std::nullopt;
  return std::vector<at::Tensor>(tensors.begin(), tensors.end());
}

}  // namespace

TuttiWork::TuttiWork(c10d::OpType type, const char* title, const Caller& caller, std::uint64_t sequence,
                     Tensors outputs, const std::shared_ptr<Channel>& channel)
    : Work(caller.rank, type, if_profiled(title), shapes_of(if_profiled(title), outputs)),
      caller_(caller),
      sequence_(sequence),
      outputs_(std::move(outputs)),
      channel_(channel) {}

void TuttiWork::keep(Tensors held, std::vector<CopyBack> copies) {
  held_ = std::move(held);
  copies_ = std::move(copies);
}

void TuttiWork::limit(std::chrono::milliseconds timeout) {
  limit_ = timeout;
  deadline_ = deadline_after(timeout);
}

void TuttiWork::open() { opener_ = std::this_thread::get_id(); }

void TuttiWork::expect_end() {
  if (Work::isCompleted()) return;
  if (const auto channel = channel_.lock(); channel && channel->is_of_a_parent()) {
    TORCH_CHECK_WITH(DistBackendError, false, caller_.text(), ": a fork of its process cannot wait for it");
  }
  if (opener_.load() != std::this_thread::get_id()) return;
  started();
  complete(backend_error(caller_.text() +
                         " and waited for it while it is open on this thread, where an exception may have left it; it "
                         "is given up, and its sends and receives were not started; expected the wait behind "
                         "end_coalescing"));
}

void TuttiWork::complete(std::exception_ptr error) {
  try {
    if (!error) {
      for (const CopyBack& back : copies_) copy_into(back.to, back.from);
    }
  } catch (...) {
    error = std::current_exception();
  }
  copies_.clear();
  held_.clear();
  finish(std::move(error));
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard lock(mutex_);
    future = std::move(future_);
  }
  if (!future) return;
  run_callback(
      [self = c10::intrusive_ptr<TuttiWork>::reclaim_copy(this), future = std::move(future)] { self->fill(*future); });
}

void TuttiWork::complete_on_device(std::shared_ptr<const DeviceEnd> end) {
  end_ = std::move(end);
  complete(nullptr);
}

bool TuttiWork::isCompleted() { return Work::isCompleted() && (end_ == nullptr || end_->reached()); }

void TuttiWork::fill(c10::ivalue::Future& future) {
  if (const std::exception_ptr error = exception()) return future.setError(error);
  const auto mark = [&] {
    future.markCompleted(c10::IValue(std::vector<at::Tensor>(outputs_.begin(), outputs_.end())));
  };
  // A future notes down where the current stream is.
  end_ == nullptr ? mark() : end_->in_stream(mark);
}

bool TuttiWork::wait(std::chrono::milliseconds timeout) {
  expect_end();
  std::unique_lock lock(mutex_);
  const Clock::time_point deadline = timeout > kNoTimeout ? deadline_after(timeout) : Clock::time_point::max();
  bool done = false;
  try {
    done = wait_with_signals(cv_, lock, std::min(deadline, deadline_), [this] { return completed_; });
  } catch (...) {
    abort_interrupted();
    throw;
  }
  if (!done && deadline_ <= deadline) {
    lock.unlock();
    const std::string why = c10::str(caller_.text(), " and timed out: it was not done within ", limit_.count(),
                                     " ms, the timeout that the call was given");
    if (const auto channel = channel_.lock()) channel->abort(why);
    TORCH_CHECK_WITH(DistBackendError, false, why);
  }
  TORCH_CHECK_WITH(DistBackendError, done, caller_.text(), " and timed out: it waited for it for ", timeout.count(),
                   " ms, the limit that it gave to wait(); the call goes on");
  if (exception_) std::rethrow_exception(exception_);
  if (end_ == nullptr) return true;
  lock.unlock();
  if (const auto channel = channel_.lock()) channel->expect_well();
  end_->block_current_stream();
  if (deadline == Clock::time_point::max()) return true;
  try {
    done = end_->wait_until(deadline);
  } catch (...) {
    abort_interrupted();
    throw;
  }
  TORCH_CHECK_WITH(DistBackendError, done, caller_.text(), " and timed out: it waited for the device for ",
                   timeout.count(), " ms, the limit that it gave to wait(); the call goes on");
  return true;
}

void TuttiWork::abort_interrupted() {
  if (const auto channel = channel_.lock()) channel->abort(caller_.text() + " and was interrupted while it waited");
}

std::vector<at::Tensor> TuttiWork::result() { return {outputs_.begin(), outputs_.end()}; }

c10::intrusive_ptr<c10::ivalue::Future> TuttiWork::getFuture() {
  std::vector<c10::Device> devices;
  if (!outputs_.empty() && !outputs_.front().is_cpu()) devices.push_back(outputs_.front().device());
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors(), std::move(devices));
  {
    const std::lock_guard lock(mutex_);
    if (!completed_) {
      if (!future_) future_ = std::move(future);
      return future_;
    }
  }
  fill(*future);
  return future;
}

}  // namespace tutti_torch
