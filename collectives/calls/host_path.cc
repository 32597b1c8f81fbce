#include "collectives/calls/host_path.h"

#include "collectives/calls/call_identity.h"

namespace tutti {

HostPath::HostPath(CommContext& context, CallCache& cache, CallLog& log)
    : context_(context),
      cache_(cache),
      log_(log),
      executor_(*context.transport, context.waiter, context.health, context.rank) {
  if (log.trace() != nullptr) executor_.set_trace(log.trace());
}

Status HostPath::bound_run_ahead() {
  if (!executor_.must_bound_run_ahead()) return {};
  const Status status = executor_.bound_run_ahead();
  return status.ok() ? status : context_.fail(status);
}

Status HostPath::run_as(const executor::CallIdentity& as, const Call& call, CallCache& cache) {
  TUTTI_TRY(bound_run_ahead());
  TUTTI_ASSIGN(const PreparedCall* const prepared, cache.get(call));
  executor::Announcement announcement = prepared->announcement;
  announcement.identity = as;
  announcement.fingerprint = as.fingerprint();
  return run(*prepared, call, announcement);
}

Status HostPath::run(const PreparedCall& prepared, const Call& call, executor::Announcement announcement,
                     const executor::UnevenPieces* uneven) {
  const executor::HostExecutor::Buffers buffers{call.send, call.recv, call.factor, uneven};
  if (prepared.agreement && is_in_place(call, context_.rank)) announcement.identity.words.flags |= transport::kInPlace;
  executor_.enter(announcement, buffers, prepared.handles);
  const PreparedCall::Plan* plan = &prepared.first;
  Status status;
  if (prepared.agreement) {
    const auto agreed = executor_.agree();
    if (!agreed.ok()) {
      status = agreed.status();
    } else if (agreed.value().in_place && prepared.if_in_place) {
      plan = &prepared.if_in_place;
    } else if (!agreed.value().registered && prepared.if_plain) {
      plan = &prepared.if_plain;
    }
  }
  if (status.ok()) status = executor_.run(**plan, buffers);
  // A rank that has failed may use its buffers for something else by now: what was read from them is no result.
  if (status.ok() && context_.health.failed()) status = context_.health.status();
  if (!status.ok() && prepared.handles) executor_.withdraw();
  if (!status.ok()) executor_.drop_net_puts();
  executor_.leave(status.ok());
  log_.record_host(*plan);
  if (log_.is_watched()) log_.report(last_record(), **plan);
  return status.ok() ? status : context_.fail(status);
}

Status HostPath::run_empty(const Call& call) {
  const executor::CallIdentity identity = identity_of(call, context_.options);
  executor_.enter({identity, identity.fingerprint(), transport::kNoAlgorithm, 0}, {}, false);
  const Status met = context_.multi_host() ? executor_.meet_remote_ranks() : Status();
  executor_.leave(met.ok());
  if (!met.ok()) return context_.fail(met);
  log_.record_none();
  if (log_.is_watched()) log_.report(last_record(), "nothing", "nothing: there is nothing to move");
  return {};
}

executor::CallSnapshot HostPath::last_record() const {
  return executor::snapshot(context_.board.calls[executor_.sequence() % transport::kCallRing]);
}

}  // namespace tutti
