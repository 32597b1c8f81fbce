// Sends and receives of a group, on a communicator of their own. They make progress in the background, independently of
// each other and of the collectives; each has its Work.
//
//   PointToPoint transfers(std::move(communicator), rank);
//   transfers.send(tensor, peer, tag, sequence)->wait();
//   transfers.start_batch(sequence);              // of this thread, until finish_batch():
//   transfers.receive(x, 1, 0, sequence);         //   only noted; returns the work of all
//   transfers.send(y, 1, 0, sequence);
//   transfers.finish_batch()->wait();             // all of them together, in any order
//
// Devices: messages of device memory go into a stream of the group's own, in the order of the calls, and pair up by
//   that order: without tags, and not from any source. Two ranks that send to each other do so in a batch.
// A refused message ends its batch, and so does a wait for a batch that was not finished; what is opened anew ends what
//   an exception has left open. Their works have the error.
// Matching: by sender and tag; messages of a pair with one tag keep their order. Count and type must be those that were
//   sent.
// Threads: any. Errors: ValueError for tensor, peer or tag; what fails later is thrown by wait().
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "csrc/execution/channel.h"
#include "csrc/execution/work.h"

namespace tutti_torch {

class PointToPoint {
 public:
  using WorkPtr = c10::intrusive_ptr<TuttiWork>;

  PointToPoint(tutti::Communicator communicator, int rank, int size)
      : channel_(Channel::make(std::move(communicator))), rank_(rank), size_(size) {}

  WorkPtr send(const at::Tensor& tensor, int peer, int tag, std::uint64_t sequence);
  WorkPtr receive(const at::Tensor& tensor, int peer, int tag, std::uint64_t sequence);
  WorkPtr receive_from_any(const at::Tensor& tensor, int tag, std::uint64_t sequence);

  void start_batch(std::uint64_t sequence);
  /// Another call that was made meanwhile: the batch's work waits for it too. Does nothing where no batch is open.
  void add_to_batch(const c10::intrusive_ptr<c10d::Work>& work);
  WorkPtr finish_batch();

  Channel& channel() { return *channel_; }

 private:
  struct Message {
    bool sending = false;
    int peer = 0;  // or tutti::kAnySource
    int tag = 0;
    at::Tensor tensor;  // the caller's
    at::Tensor memory;  // contiguous: the same, or a copy
    Elements elements;
  };
  struct Batch {
    WorkPtr work;  // of all
    std::vector<Message> messages;
    std::vector<c10::intrusive_ptr<c10d::Work>> others;
  };

  Message checked(bool sending, const at::Tensor& tensor, int peer, int tag, const Caller& caller) const;
  /// Calls checked(); a refusal ends the batch that this thread has open.
  Message message(bool sending, const at::Tensor& tensor, int peer, int tag, const Caller& caller);
  /// Puts them into a stream, all together.
  void launch_on_device(std::span<const Message> messages, TuttiWork& work);
  /// Starts it, or notes it where this thread has a batch open.
  WorkPtr launch(Message message, c10d::OpType type, const char* title, const Caller& caller, std::uint64_t sequence);
  static tutti::Work start(tutti::Communicator& communicator, const Message& message, int* source);
  /// Between group_start and group_end.
  static void note(tutti::Communicator& communicator, const Message& message, tutti::Stream stream = nullptr);
  static std::vector<CopyBack> copies_of(std::span<const Message> messages);
  /// Returns the batch that this thread has open; null: none, or it was abandoned.
  Batch* batch();
  /// Ends this thread's batch, if there is one, with that error: nothing of it was started.
  void give_up_batch(std::exception_ptr error);
  void start(Batch& batch, const Caller& caller);

  const std::shared_ptr<Channel> channel_;
  const int rank_;
  const int size_;
  std::atomic<int> open_batches_{0};
  std::mutex mutex_;
  SideStreams streams_;
  std::unordered_map<std::thread::id, Batch> batches_;  // guarded by mutex_; of a thread, used by it alone
};

}  // namespace tutti_torch
