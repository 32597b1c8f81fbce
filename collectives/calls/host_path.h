// Calls on host memory, by plans that the host's executor runs.
//
// Threads: one at a time, the thread that runs calls.
#pragma once

#include <cstddef>
#include <memory>

#include "base/lru_table.h"
#include "base/status.h"
#include "collectives/call.h"
#include "collectives/calls/call_preparer.h"
#include "collectives/calls/comm_context.h"
#include "collectives/diagnostics/call_log.h"
#include "collectives/executor/host/executor.h"
#include "collectives/executor/record.h"
#include "collectives/executor/uneven.h"
#include "collectives/planner/planner.h"

namespace tutti {

class HostPath {
 public:
  /// `context` and `log` outlive it.
  HostPath(CommContext& context, std::unique_ptr<planner::Planner> planner, CallLog& log);

  /// Keeps this rank within a bounded number of calls of the others. Before each call; see
  /// CallEntry::bound_run_ahead().
  Status bound_run_ahead();
  /// Runs a valid call. After bound_run_ahead().
  Status run(const Call& call);
  /// Runs it as a part of another call, which the other ranks see as `as`. `preparer`: of the ranks that take part.
  Status run_as(const executor::CallIdentity& as, const Call& call, CallPreparer& preparer);
  Status run_as(const executor::CallIdentity& as, const Call& call) { return run_as(as, call, preparer_); }
  /// Finds the call among those of its kind, or makes it ready when it is new. Valid until the next one. Errors: as the
  /// planner's.
  Result<const PreparedCall*> prepared(const Call& call) { return prepared(call, preparer_); }
  /// Runs it by the plan that serves it. `uneven`: the pieces of an all_to_allv.
  Status run(const PreparedCall& prepared, const Call& call, executor::Announcement announcement,
             const executor::UnevenPieces* uneven = nullptr);
  /// Runs a call that has nothing to move. It is announced all the same, so that a rank which makes another call is
  /// found. No rank waits, where all are on one host.
  Status run_empty(const Call& call);

  executor::HostExecutor& executor() { return executor_; }
  const executor::HostExecutor& executor() const { return executor_; }
  const planner::Planner& planner() const { return preparer_.planner(); }
  /// Returns the bytes that plans take, estimated.
  std::size_t plan_bytes() const;
  /// Returns the record of the call that ran last.
  executor::CallSnapshot last_record() const;

 private:
  Result<const PreparedCall*> prepared(const Call& call, CallPreparer& preparer);

  CommContext& context_;
  CallLog& log_;
  CallPreparer preparer_;
  LruTable<PreparedCall> prepared_;
  executor::HostExecutor executor_;
};

}  // namespace tutti
