// A Communicator that any thread may use: what Tutti wants one thread at a time to do is done under a lock.
//
//   channel.run(operations);                               // on this thread, when idle()
//   channel.start(operations, [work](std::exception_ptr error) { work->complete(error); });
//
// Order: that of the calls. Collectives of one group must be called in the same order on all ranks, so threads that share
//   a group order themselves, as with any backend of torch.
// Locks: run() holds the lock until the operation is done, start() only while it hands over. abort() takes none.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>

#include "csrc/operation.h"

namespace tutti_torch {

class Channel {
 public:
  explicit Channel(tutti::Communicator communicator)
      : communicator_(std::move(communicator)), pending_(std::make_shared<std::atomic<int>>(0)) {}

  /// Nothing that was started is still under way.
  bool idle() const { return pending_->load(std::memory_order_acquire) == 0; }

  /// Throws tutti::Error.
  void run(std::span<const Operation> operations);

  /// `done` is called once, when all are done or one has failed: by the thread that finishes the last one, or by this one.
  /// Throws tutti::Error, and does not call `done`, when nothing was started.
  void start(std::span<const Operation> operations, std::function<void(std::exception_ptr)> done);

  /// Ends what is under way, on all ranks. Any thread, any time.
  void abort(const std::string& reason) { communicator_.abort(reason); }

  /// Calls `body(communicator)` under the lock.
  template <class Body>
  auto use(Body&& body) {
    const std::lock_guard lock(mutex_);
    return body(communicator_);
  }
  /// For what any thread may call at any time.
  const tutti::Communicator& communicator() const { return communicator_; }

 private:
  std::mutex mutex_;
  tutti::Communicator communicator_;  // its calls are guarded by mutex_
  // Kept by the operations under way, which may end after this.
  const std::shared_ptr<std::atomic<int>> pending_;
};

}  // namespace tutti_torch
