#include "collectives/calls/host_path.h"

#include <bit>
#include <cstdint>
#include <string_view>
#include <utility>

#include "collectives/calls/call_identity.h"

namespace tutti {

HostPath::HostPath(CommContext& context, std::unique_ptr<planner::Planner> planner, CallLog& log)
    : context_(context),
      log_(log),
      preparer_(context, std::move(planner)),
      executor_(*context.transport, context.waiter, context.health, context.rank) {
  if (log.trace() != nullptr) executor_.walker.set_trace(log.trace());
}

Status HostPath::bound_run_ahead() {
  if (!executor_.entry.must_bound_run_ahead()) return {};
  const Status status = executor_.entry.bound_run_ahead();
  return status.ok() ? status : context_.fail(status);
}

Result<const PreparedCall*> HostPath::prepared(const Call& call, CallPreparer& preparer) {
  const auto words = std::bit_cast<std::uint64_t>(words_of(call, context_.options));
  const std::string_view request = requested_algorithm(call, context_.options);
  const auto matches = [&](const PreparedCall& known) {
    const executor::CallIdentity& identity = known.announcement.identity;
    return identity.count == call.count && std::bit_cast<std::uint64_t>(identity.words) == words &&
           known.request == request && known.preparer == &preparer;
  };
  const std::uint64_t hash = (call.count * 0x9E3779B97F4A7C15ULL) ^ (words * 0xBF58476D1CE4E5B9ULL);
  if (const PreparedCall* const known = prepared_.find(hash, matches)) return known;
  TUTTI_ASSIGN(std::unique_ptr<const PreparedCall> made, preparer.prepare(call));
  return prepared_.insert(hash, std::move(made));
}

std::size_t HostPath::plan_bytes() const {
  std::size_t bytes = planner().memory();
  prepared_.each([&bytes](const PreparedCall& call) { bytes += call.memory(); });
  return bytes;
}

Status HostPath::run(const Call& call) {
  TUTTI_ASSIGN(const PreparedCall* const prepared_call, prepared(call));
  return run(*prepared_call, call, prepared_call->announcement);
}

Status HostPath::run_as(const executor::CallIdentity& as, const Call& call, CallPreparer& preparer) {
  TUTTI_TRY(bound_run_ahead());
  TUTTI_ASSIGN(const PreparedCall* const prepared_call, prepared(call, preparer));
  executor::Announcement announcement = prepared_call->announcement;
  announcement.identity = as;
  announcement.fingerprint = as.fingerprint();
  return run(*prepared_call, call, announcement);
}

Status HostPath::run(const PreparedCall& prepared, const Call& call, executor::Announcement announcement,
                     const executor::UnevenPieces* uneven) {
  const executor::CallBuffers buffers{call.send, call.recv, call.factor, uneven};
  if (prepared.agreement && is_in_place(call, context_.rank)) announcement.identity.words.flags |= transport::kInPlace;
  executor_.entry.enter(announcement, buffers, prepared.handles);
  const PreparedCall::Plan* plan = &prepared.first;
  Status status;
  if (prepared.agreement) {
    const auto agreed = executor_.entry.agree();
    if (!agreed.ok()) {
      status = agreed.status();
    } else if (agreed.value().in_place && prepared.if_in_place) {
      plan = &prepared.if_in_place;
    } else if (!agreed.value().registered && prepared.if_plain) {
      plan = &prepared.if_plain;
    }
  }
  if (status.ok()) status = executor_.walker.run(**plan, buffers);
  // A rank that has failed may use its buffers for something else by now: what was read from them is no result.
  if (status.ok() && context_.health.failed()) status = context_.health.status();
  if (!status.ok() && prepared.handles) executor_.entry.withdraw();
  if (!status.ok() && executor_.net) executor_.net->puts().drop();
  executor_.entry.leave(status.ok());
  log_.record_host(*plan);
  if (log_.is_watched()) log_.report(last_record(), **plan);
  return status.ok() ? status : context_.fail(status);
}

Status HostPath::run_empty(const Call& call) {
  const executor::CallIdentity identity = identity_of(call, context_.options);
  executor_.entry.enter({identity, identity.fingerprint(), transport::kNoAlgorithm, 0}, {}, false);
  const Status met = context_.multi_host() ? executor_.net->meet_remote_ranks() : Status();
  executor_.entry.leave(met.ok());
  if (!met.ok()) return context_.fail(met);
  log_.record_none();
  if (log_.is_watched()) log_.report(last_record(), "nothing", "nothing: there is nothing to move");
  return {};
}

executor::CallSnapshot HostPath::last_record() const {
  return executor::snapshot(context_.board.calls[executor_.entry.sequence() % transport::kCallRing]);
}

}  // namespace tutti
