// A Communicator that any thread may use: what Tutti wants one thread at a time to do is done under a lock.
//
//   const std::shared_ptr<Channel> channel = Channel::make(std::move(communicator));
//   channel->run(operations);                               // on this thread, when idle()
//   channel->start(operations, [work](std::exception_ptr error) { work->complete(error); });
//
// Order: that of the calls. Collectives of one group must be called in the same order on all ranks, so threads that
//   share a group order themselves, as with any backend of torch.
// Locks: run() holds the lock until the operation is done, start() only while it hands over. abort() takes none.
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include "csrc/base/signals.h"
#include "csrc/execution/operation.h"

namespace tutti_torch {

class Channel {
 public:
  static std::shared_ptr<Channel> make(tutti::Communicator communicator);
  /// Ends what is under way with an error on all ranks: no caller is left to wait for it.
  ~Channel();
  /// Closes all channels that this process has made, before it ends: waits for what is under way for at most `limit`
  /// together, then ends it. To be called without the GIL.
  static void close_all(std::chrono::milliseconds limit);

  /// Nothing that was started is still under way.
  bool idle() const { return state_->pending.load(std::memory_order_acquire) == 0; }
  /// Until then, seeing signals; false when it is not by `deadline`. In a fork of the process that made it, at once.
  /// What a signal's handler raises is thrown, after what is under way was ended on all ranks.
  bool wait_idle(Clock::time_point deadline);

  /// Throws tutti::Error.
  void run(std::span<const Operation> operations);
  /// Runs them with another timeout than the group's, which is `usual`.
  void run(std::span<const Operation> operations, std::chrono::milliseconds timeout, std::chrono::milliseconds usual);

  /// `done` is called once, when all are done or one has failed: by the thread that finishes the last one, or by this
  /// one. Throws tutti::Error, and does not call `done`, when nothing was started.
  void start(std::span<const Operation> operations, std::function<void(std::exception_ptr)> done);
  /// Counts `work` as under way until it is done, and calls `done` then, as start() does.
  void watch(const tutti::Work& work, std::function<void(std::exception_ptr)> done);

  /// Ends what is under way, on all ranks. Any thread, any time; does nothing after close().
  void abort(const std::string& reason);
  /// Leaves the group: calls that follow are refused. Waits for what is under way.
  void close();

  /// This process is a fork of the one that made it, which has none of the threads that would end a work.
  bool is_of_a_parent() const { return getpid() != process_; }

  /// Returns the code of the first operation that failed, or of an abort(); ok: none.
  tutti::Code failure() const { return state_->failure.load(std::memory_order_relaxed); }

  /// Throws what has ended the group, in a call that is in a stream too.
  void expect_well() const;

  /// Calls `body(communicator)` under the lock. Throws tutti::Error after close().
  template <class Body>
  auto use(Body&& body) {
    const std::lock_guard lock(mutex_);
    return body(open_communicator());
  }
  /// For what any thread may call at any time.
  tutti::Communicator communicator() const;

 private:
  explicit Channel(tutti::Communicator communicator)
      : state_(std::make_shared<State>()), communicator_(std::move(communicator)) {}

  // Kept by the operations under way, which may end after this.
  struct State {
    std::atomic<int> pending{0};
    std::atomic<tutti::Code> failure{tutti::Code::ok};
    std::mutex mutex;
    std::condition_variable idle;
    void failed(tutti::Code code);
  };

  tutti::Communicator& open_communicator();
  void run(tutti::Communicator& communicator, std::span<const Operation> operations);

  const pid_t process_ = getpid();
  const std::shared_ptr<State> state_;
  std::mutex mutex_;                  // of calls
  mutable std::mutex handle_mutex_;   // of communicator_ itself, held for no longer than a copy takes
  tutti::Communicator communicator_;  // written under both; its calls are under mutex_
};

}  // namespace tutti_torch
