#include "collectives/calls/async_queue.h"

#include <chrono>

#include "base/start_thread.h"

namespace tutti {

bool QueuedWork::wait_for(std::chrono::nanoseconds limit) {
  std::unique_lock lock(mutex_);
  const auto done = [this] { return done_; };
  // A limit past the clock's range means for ever.
  if (limit > std::chrono::hours(24 * 365)) {
    finished_.wait(lock, done);
    return true;
  }
  return finished_.wait_for(lock, limit, done);
}

Status QueuedWork::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

void QueuedWork::then(std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (!done_) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callback();
}

QueuedWork::Callbacks QueuedWork::settle(Status status) {
  Callbacks callbacks;
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
    status_ = std::move(status);
    callbacks.swap(callbacks_);
  }
  finished_.notify_all();
  return callbacks;
}

std::shared_ptr<PendingWork> finished_work(Status status) {
  auto work = std::make_shared<QueuedWork>();
  work->finish(std::move(status));
  return work;
}

AsyncQueue::~AsyncQueue() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Result<std::shared_ptr<PendingWork>> AsyncQueue::start(std::function<Status()> operation) {
  auto work = std::make_shared<QueuedWork>();
  TUTTI_TRY(post([work, operation = std::move(operation)] { return Endings{{work, operation()}}; }));
  return std::shared_ptr<PendingWork>(std::move(work));
}

Status AsyncQueue::post(std::function<Endings()> operation) {
  if (!thread_.joinable()) {
    TUTTI_ASSIGN(thread_, start_thread("the thread of asynchronous calls", [this] { loop(); }));
  }
  ++started_;
  pending_.fetch_add(1, std::memory_order_relaxed);
  {
    const std::lock_guard lock(mutex_);
    operations_.push_back(std::move(operation));
  }
  changed_.notify_all();
  return {};
}

void AsyncQueue::wait_for_idle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return pending_.load(std::memory_order_acquire) == 0; });
}

void AsyncQueue::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ending_ || !operations_.empty(); });
    if (operations_.empty()) return;
    const std::function<Endings()> operation = std::move(operations_.front());
    operations_.pop_front();
    lock.unlock();
    Endings endings = operation();
    lock.lock();
    pending_.fetch_sub(1, std::memory_order_release);
    // Idle before done: a caller that has seen its work done may start something else at once.
    changed_.notify_all();
    QueuedWork::Callbacks callbacks;
    for (auto& [work, status] : endings) {
      for (auto& callback : work->settle(std::move(status))) callbacks.push_back(std::move(callback));
    }
    lock.unlock();
    for (const auto& callback : callbacks) callback();
    lock.lock();
  }
}

}  // namespace tutti
