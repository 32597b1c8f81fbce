#include "csrc/base/callbacks.h"

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "csrc/base/per_process.h"

namespace tutti_torch {

namespace {

class Callbacks {
 public:
  void run(std::function<void()> callback) {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(callback));
      ++unfinished_;
      if (static_cast<std::size_t>(idle_) < waiting_.size()) add_thread();
    }
    changed_.notify_one();
  }

  void wait(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    none_.wait_for(lock, limit, [this] { return unfinished_ == 0; });
  }

 private:
  void add_thread() {
    try {
      std::thread([this] { loop(); }).detach();
      ++threads_;
    } catch (const std::system_error&) {
      if (threads_ == 0) throw;  // else one of them gets to it
    }
  }

  void loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
      ++idle_;
      changed_.wait(lock, [this] { return !waiting_.empty(); });
      --idle_;
      std::function<void()> callback = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      callback();
      callback = nullptr;
      lock.lock();
      if (--unfinished_ == 0) none_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable none_;
  std::deque<std::function<void()>> waiting_;  // guarded by mutex_
  int idle_ = 0;                               // guarded by mutex_: threads in changed_.wait()
  int threads_ = 0;                            // guarded by mutex_
  int unfinished_ = 0;                         // guarded by mutex_: waiting or running
};

}  // namespace

void run_callback(std::function<void()> callback) { per_process<Callbacks>().run(std::move(callback)); }

void wait_for_callbacks(std::chrono::milliseconds limit) { per_process<Callbacks>().wait(limit); }

}  // namespace tutti_torch
