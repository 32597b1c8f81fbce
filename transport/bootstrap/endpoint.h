// One rank's end of the bootstrap, the same at the server and at a client.
// How: callers post messages and wait for outcomes. The loop behind it (server.cc or client.cc) sends and receives.
// Errors: timeout, when the server does not read what is posted or does not answer; else what break_off() was given.
// Threads: any; the functions of the loop by the loop's thread alone, which also makes the calls of watch().
// Limits: kMaxOutbox bytes that the loop has not taken yet.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/bootstrap/message.h"
#include "transport/sockets/fd.h"

namespace tutti::bootstrap {

/// A rank died, or announced a failure.
struct Failure {
  Code code = Code::aborted;
  int rank = -1;  // that died, or that announced it; -1 when it is not one rank's
  std::uint64_t comm_id = 0;
  std::string message;
};

class BootstrapEndpoint {
 public:
  using Clock = std::chrono::steady_clock;
  /// Frames to be sent that the loop has not taken yet.
  static constexpr std::size_t kMaxOutbox = 2 * kMaxPayload;

  BootstrapEndpoint(int rank, int size, Identity own);
  /// Returns ok, or why this object is useless. Errors: system, no eventfd could be had: the loop would sleep through
  /// what is posted.
  const Status& made() const { return made_; }

  int rank() const { return rank_; }
  int size() const { return size_; }
  const Identity& own() const { return own_; }

  // Callers.

  /// Hands a frame to the loop. Errors: the connection is gone, or the outbox is full because the server does not read.
  template <class Message>
  Status post(const Message& message) {
    return post_frame({Message::kType, encode(message)});
  }
  /// The end of an exchange. `late_rank`: see GatherFailed::rank.
  struct Outcome {
    Result<std::vector<std::string>> blobs;
    int late_rank = -1;
  };
  /// Waits for the outcome of exchange `sequence` (0: all ranks have joined; without blobs). When `deadline` passes,
  /// the server is asked who is missing. If it does not answer either, the error names rank 0. `limit`: the time that
  /// the error says was waited.
  Outcome await(std::uint64_t sequence, Clock::time_point deadline, std::chrono::milliseconds limit);
  /// Waits for `most` and no longer. Returns nothing while the outcome is not known.
  std::optional<Outcome> await_briefly(std::uint64_t sequence, std::chrono::milliseconds most);
  void watch(std::function<void(const Failure&)> on_failure,
             std::function<void(const ProgressReport&)> on_progress_report,
             std::function<void(const LeaveNotice&)> on_leave_notice);
  /// Returns the first failure that has not been given to a callback, if there is one.
  std::optional<Failure> early_failure() const;
  bool has_left(int rank) const { return left_[static_cast<std::size_t>(rank)].load(std::memory_order_acquire); }
  std::vector<Identity> roster() const;
  /// Asks the loop to end: with a goodbye, or at once.
  void ask_to_leave();
  void ask_to_stop();

  // Loop.

  int wake_fd() const { return wake_.get(); }
  void drain_wake();
  bool leaving() const { return leaving_.load(std::memory_order_acquire); }
  bool stopping() const { return stopping_.load(std::memory_order_acquire); }
  std::deque<Frame> take_outbox();
  /// Takes a frame from the server. Errors: malformed, or not one that the server sends.
  Status deliver(const Frame& frame);
  void note_failure(Failure failure);
  void note_left(int rank);
  /// Ends every present and future wait with `status`, unless its outcome is already here.
  void break_off(Status status);
  /// Makes the calls of watch() for what has come since the last time.
  void run_callbacks();

 private:
  Status post_frame(Frame frame);
  void wake();
  std::string name_of_server() const;  // REQUIRES: mutex_ held
  /// REQUIRES: mutex_ held.
  bool knows(std::uint64_t sequence) const { return outcomes_.count(sequence) != 0 || !broken_.ok(); }
  /// REQUIRES: mutex_ held, and knows(sequence).
  Outcome take_outcome(std::uint64_t sequence);

  /// Events that have come and no callback has taken yet.
  template <class Event>
  struct Events {
    std::function<void(const Event&)> callback;
    std::deque<Event> pending;
  };

  // Constant after construction.
  const int rank_;
  const int size_;
  const Identity own_;
  sockets::Fd wake_;
  Status made_;

  // Own synchronisation.
  std::vector<std::atomic<bool>> left_;
  std::atomic<bool> leaving_{false};
  std::atomic<bool> stopping_{false};

  // Under mutex_.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Frame> outbox_;
  std::size_t outbox_bytes_ = 0;
  std::map<std::uint64_t, Outcome> outcomes_;
  std::vector<Identity> roster_;
  Status broken_;
  Events<Failure> failures_;
  Events<ProgressReport> progress_reports_;
  Events<LeaveNotice> leave_notices_;
};

/// "rank 2 (host alpha, pid 77)".
std::string name_of(int rank, const Identity& identity);
/// "rank 2 (host alpha, pid 77) gave up while the communicator was made: <why>".
std::string gave_up(int rank, const Identity& identity, const std::string& why);
/// "rank 2 (host alpha, pid 77, 10.7.0.2 on eth0)", for what may be the network's fault; as name_of() without an
/// address.
std::string name_and_address_of(int rank, const Identity& identity);

/// "5 s", "0.25 s".
std::string seconds_text(std::chrono::milliseconds duration);

}  // namespace tutti::bootstrap
