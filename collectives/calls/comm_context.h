// Who this rank is in one communicator, and what all parts of the communicator share: the ways to the other ranks, the
// one failure, waiting, and the thread of asynchronous calls.
//
// Threads: `health` and `queue` by any thread; `waiter` by the thread that runs calls, which is the caller's or the
// queue's, one at a time; the timeout in `options` by the caller's. All else is constant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "collectives/calls/async_queue.h"
#include "collectives/diagnostics/flight_recorder.h"
#include "collectives/executor/host/trace.h"
#include "collectives/executor/wait/health.h"
#include "collectives/executor/wait/wait.h"
#include "collectives/job/job_context.h"
#include "transport/transport.h"
#include "transport/wire/net_links.h"
#include "tutti/tutti.hpp"

namespace tutti {

struct CommContext {
  /// Subscribes to failures in the job. `world_ranks`: by rank. `comm_id`: the same number on all ranks; 0: the job's.
  CommContext(std::shared_ptr<JobContext> job, std::vector<int> world_ranks, int rank, std::uint64_t comm_id,
              const Options& options, std::unique_ptr<transport::Transport> transport);
  /// Tells the other ranks that this one has left. REQUIRES: the queue is idle.
  ~CommContext();
  CommContext(const CommContext&) = delete;
  CommContext& operator=(const CommContext&) = delete;

  int size() const { return static_cast<int>(world_ranks.size()); }
  bool multi_host() const { return links != nullptr; }
  /// Returns "rank 2 (host alpha, pid 4711)"; in a group as rank_names.h says.
  std::string name_of(int rank) const;
  /// Returns the rank here, or -1.
  int rank_of(int world_rank) const;
  /// Returns whose files this communicator writes.
  executor::FileOwner file_owner() const;
  /// Returns the id of the communicator of the `number`-th split or shrink. Colors of splits are not negative, those of
  /// shrinks are.
  std::uint64_t child_comm_id(std::uint64_t number, int color) const;

  /// Errors: invalid_argument in a fork of the process that made this.
  Status usable() const;
  /// Ends the communicator: makes `status` the failure of all ranks, unless there is one. Prints the flight recorder at
  /// the first failure. Returns the failure that holds.
  Status fail(Status status);
  /// Waits until all asynchronous calls are done; from then on the caller's thread runs calls.
  void use_callers_thread() {
    queue.wait_idle();
    waiter.set_background(false);
  }

  const std::shared_ptr<JobContext> job;
  const std::vector<int> world_ranks;
  const int rank;
  const std::uint64_t comm_id;
  Options options;
  const std::string name;             // of this rank
  const std::size_t streaming_above;  // bytes of a buffer that stores should not keep in the caches
  const std::unique_ptr<transport::Transport> transport;
  transport::NetLinks* const links;  // null: all ranks are on this host
  transport::Board& board;           // this rank's
  executor::Health health;
  executor::Waiter waiter;
  AsyncQueue queue;
  std::unique_ptr<FlightRecorder> recorder;

 private:
  const std::uint64_t forks_;  // from this process's first ancestor to it
  bool recorded_failure_ = false;
};

}  // namespace tutti
