// One call of a collective, or of a send or receive, as torch holds it: c10d::Work.
//
// Who ends it: complete(), called by the thread that did the work. What is to be done with the result before the caller
//   may see it (copies into tensors that are not contiguous) is done there, so that "completed" means all of it.
// On a device it is complete when it is in a stream; wait() puts the current stream behind it, and blocks the caller
//   only when it has a limit. isCompleted() asks the device.
// Future: made when asked for, completed after the call is and never before, by a thread that may run Python
//   (callbacks.h). Its value is the list of the outputs.
// Memory: holds inputs and temporaries until it is complete, and the outputs as long as it lives.
// wait(): sees signals (signals.h). What a handler raises is thrown, and the group ends on all ranks, as it does when a
//   blocking call is interrupted: this rank will not take part in what is under way as the others expect. With a limit
//   that passes, DistBackendError; the call goes on all the same, unless it is past a timeout of its own: see limit().
#pragma once

#include <c10/util/SmallVector.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "csrc/execution/channel.h"
#include "csrc/execution/streams.h"
#include "csrc/tensors/tensors.h"

namespace tutti_torch {

using Tensors = c10::SmallVector<at::Tensor, 1>;

class TuttiWork final : public c10d::Work {
 public:
  /// `title`: what the profiler shows ("tutti:all_reduce"), of the call `caller` on `channel`.
  TuttiWork(c10d::OpType type, const char* title, const Caller& caller, std::uint64_t sequence, Tensors outputs,
            const std::shared_ptr<Channel>& channel);

  /// Keeps `held` alive until it is complete, and makes `copies` then (when it went well).
  void keep(Tensors held, std::vector<CopyBack> copies);
  /// Sets a timeout of its own, from now on: a wait that takes longer ends the group, on all ranks. Call it before
  /// start.
  void limit(std::chrono::milliseconds timeout);
  /// Marks it as a batch that this thread has opened and not ended: a wait() of this thread would never return, and
  /// ends it with an error.
  void open();
  void started() { opener_ = std::thread::id(); }
  /// Returns where a receive stores the rank that its message came from; before complete().
  int* source() { return &source_; }
  /// Null: done well.
  void complete(std::exception_ptr error);
  /// It is in a stream: done when `end` is reached.
  void complete_on_device(std::shared_ptr<const DeviceEnd> end);

  bool isCompleted() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  std::vector<at::Tensor> result() override;
  int sourceRank() const override { return source_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  std::uint64_t getSequencenumber() const override { return sequence_; }

 private:
  void fill(c10::ivalue::Future& future);
  /// Ends the group when wait() throws what a signal's handler raised.
  void abort_interrupted();
  /// Refuses a wait that can never end: for an open batch on the thread that opened it, and for a work of a fork's
  /// parent.
  void expect_end();

  const Caller caller_;
  const std::uint64_t sequence_;
  const Tensors outputs_;
  const std::weak_ptr<Channel> channel_;
  std::chrono::milliseconds limit_ = kNoTimeout;           // set before it is started
  Clock::time_point deadline_ = Clock::time_point::max();  // set before it is started
  Tensors held_;                                           // after keep(): used by the thread that completes alone
  std::vector<CopyBack> copies_;                           // after keep(): used by the thread that completes alone
  std::atomic<std::thread::id> opener_{};                  // none: it has been started
  int source_ = -1;                                        // set before it is complete
  std::shared_ptr<const DeviceEnd> end_;                   // set before it is complete; null: on the host
  c10::intrusive_ptr<c10::ivalue::Future> future_;         // guarded by mutex_
};

}  // namespace tutti_torch
