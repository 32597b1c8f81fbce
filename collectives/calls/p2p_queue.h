// Sends and receives on host memory. A blocking group runs on the caller's thread when nothing else is under way.
// Groups that are started asynchronously run on the communicator's own thread, in one operation of its queue: while
// that is the last one in the queue and has not ended, the groups that are started next join it. So a collective waits
// for all that was started before it, and what is started after it waits for it; between two collectives sends and
// receives progress independently of each other.
//
// Threads: run() and start() by the caller's; run_on_queue() by the queue's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"
#include "collectives/call.h"
#include "collectives/calls/async_queue.h"
#include "collectives/calls/comm_context.h"
#include "collectives/calls/started_groups.h"
#include "collectives/diagnostics/call_log.h"
#include "collectives/executor/p2p/transfers.h"

namespace tutti {

class P2pQueue {
 public:
  /// Both outlive it.
  P2pQueue(CommContext& context, CallLog& log);

  /// Runs a valid group. REQUIRES: nothing else is under way.
  Status run(std::span<const Transfer> transfers);
  /// Starts a valid group.
  Result<std::shared_ptr<PendingWork>> start(std::span<const Transfer> transfers);

  std::size_t unexpected_bytes() const { return transfers_.unexpected_bytes(); }
  std::uint64_t bytes() const { return transfers_.bytes(); }  // moved

 private:
  /// Writes the group to the flight recorder. Returns its number there.
  std::uint64_t announce(std::span<const Transfer> transfers);
  void begin(StartedGroup& group);
  Status ended(std::uint64_t number, Status status);
  /// Runs on the queue until all groups are done, and those that were offered meanwhile.
  AsyncQueue::Endings run_on_queue(StartedGroups& groups);

  CommContext& context_;
  CallLog& log_;
  executor::Transfers transfers_;
  std::shared_ptr<StartedGroups> started_;  // of the operation that was the queue's last one when it was posted,
  std::uint64_t started_as_ = 0;            // with this number
  std::uint64_t groups_ = 0;
};

}  // namespace tutti
