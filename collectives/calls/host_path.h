// Calls on host memory, by plans that the host's executor carries out.
//
// Threads: one at a time, the thread that runs calls.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "collectives/call.h"
#include "collectives/calls/call_cache.h"
#include "collectives/calls/comm_context.h"
#include "collectives/diagnostics/call_log.h"
#include "collectives/executor/host/executor.h"
#include "collectives/executor/record.h"
#include "collectives/executor/uneven.h"

namespace tutti {

class HostPath {
 public:
  /// All three outlive it.
  HostPath(CommContext& context, CallCache& cache, CallLog& log);

  /// Keeps this rank within a bounded number of calls of the others. Before each call; see
  /// HostExecutor::bound_run_ahead().
  Status bound_run_ahead();
  /// Runs a valid call. After bound_run_ahead().
  Status run(const Call& call) {
    TUTTI_ASSIGN(const PreparedCall* const prepared, cache_.get(call));
    return run(*prepared, call, prepared->announcement);
  }
  /// Runs it as a part of another call, which the other ranks see as `as`. `cache`: of the ranks that take part.
  Status run_as(const executor::CallIdentity& as, const Call& call, CallCache& cache);
  Status run_as(const executor::CallIdentity& as, const Call& call) { return run_as(as, call, cache_); }
  /// Runs it by the plan that serves it. `uneven`: the pieces of an all_to_allv.
  Status run(const PreparedCall& prepared, const Call& call, executor::Announcement announcement,
             const executor::UnevenPieces* uneven = nullptr);
  /// Runs a call that has nothing to move. It is announced all the same, so that a rank which makes another call is
  /// found. No rank waits, where all are on one host.
  Status run_empty(const Call& call);

  executor::HostExecutor& executor() { return executor_; }
  const executor::HostExecutor& executor() const { return executor_; }
  CallCache& cache() { return cache_; }
  /// Returns the record of the call that ran last.
  executor::CallSnapshot last_record() const;

 private:
  CommContext& context_;
  CallCache& cache_;
  CallLog& log_;
  executor::HostExecutor executor_;
};

}  // namespace tutti
