// Messages that the rank of a communicator of one sends to itself: with more ranks their order and their rules are the
// same.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "collectives/call.h"
#include "collectives/communicator_interface.h"

namespace tutti {

/// Threads: transfer() and start() from one thread at a time, the others from any.
class SelfMessages {
 public:
  /// `name`: of the rank, in errors.
  SelfMessages(std::chrono::milliseconds timeout, std::string name) : name_(std::move(name)), timeout_(timeout) {}

  /// Sends and receives of one group. The communicator keeps a message that the rank does not receive yet, in host
  /// memory. Errors: mismatch (sizes or types differ), unsupported (such a message in device memory), invalid_argument
  /// (the rank receives what it has not sent: no other rank could send it meanwhile).
  Status transfer(std::span<const Transfer> transfers);
  /// Starts a group whose receives may wait for a later send, until the deadline. Errors: those of transfer().
  Result<std::shared_ptr<PendingWork>> start(std::span<const Transfer> transfers);
  /// Ends all waiting receives with `status`.
  void fail(const Status& status);
  void set_timeout(std::chrono::milliseconds timeout);

 private:
  class Receives;
  struct Message {
    Transfer transfer;             // its buffer is the caller's, or `bytes`
    std::vector<std::byte> bytes;  // once it is kept
  };
  struct Waiting {
    Transfer transfer;
    std::shared_ptr<Receives> work;
  };

  Status begin(std::span<const Transfer> transfers, const std::shared_ptr<Receives>& work);
  Status hand_over(const Transfer& send, const Transfer& receive) const;
  bool take(std::deque<Message>& from, const Transfer& receive, Status& status) const;

  const std::string name_;
  std::mutex mutex_;
  std::chrono::milliseconds timeout_;  // guarded by mutex_
  std::deque<Message> messages_;       // guarded by mutex_; the oldest first
  std::list<Waiting> waiting_;         // guarded by mutex_
};

}  // namespace tutti
