#include "collectives/communicator/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "collectives/calls/call_copy.h"
#include "collectives/calls/rank_names.h"
#include "collectives/calls/validate.h"
#include "collectives/calls/window_sizing.h"
#include "collectives/job/planner_factory.h"
#include "device/memory_kind.h"

namespace tutti {

using executor::PeerCounts;

Result<std::shared_ptr<TuttiCommunicator>> TuttiCommunicator::create(std::shared_ptr<JobContext> job,
                                                                     std::vector<int> world_ranks, int rank,
                                                                     std::uint64_t comm_id, const Options& options,
                                                                     const Exchange& exchange) {
  Result<transport::WindowSizes> sizes =
      window_sizes(static_cast<int>(world_ranks.size()), options, most_remote_ranks(*job, world_ranks));
  Result<std::unique_ptr<planner::Planner>> planner = sizes.status();
  if (sizes.ok()) planner = make_planner(*job, world_ranks, sizes.value());
  for (const Status& status : {sizes.status(), planner.status()}) {
    if (status.ok()) continue;
    (void)exchange(job->nothing());  // the others wait for this rank's part
    return status;
  }
  const auto name_of = [&](int r) { return rank_name(*job, world_ranks, options, r); };
  Result<std::unique_ptr<transport::Transport>> transport =
      job->connect(comm_id, world_ranks, rank, name_of, sizes.value(), exchange);
  if (!transport.ok()) {
    // The others may have got further, and would wait for this rank in their first call.
    (void)job->report_failure(comm_id, transport.status().code(),
                              name_of(rank) + " could not join the communicator: " + transport.status().message());
    return transport.status();
  }
  // A fork's copy is left as it is: its threads do not exist, and what it shares with the peers is its parent's.
  const auto unless_forked = [](TuttiCommunicator* communicator) {
    if (communicator->context_.usable().ok()) delete communicator;
  };
  return std::shared_ptr<TuttiCommunicator>(new TuttiCommunicator(std::move(job), std::move(world_ranks), rank, comm_id,
                                                                  options, transport.take(), planner.take()),
                                            unless_forked);
}

TuttiCommunicator::TuttiCommunicator(std::shared_ptr<JobContext> job, std::vector<int> world_ranks, int rank,
                                     std::uint64_t comm_id, const Options& options,
                                     std::unique_ptr<transport::Transport> transport,
                                     std::unique_ptr<planner::Planner> planner)
    : context_(std::move(job), std::move(world_ranks), rank, comm_id, options, std::move(transport)),
      log_(context_.file_owner()),
      host_(context_, std::move(planner), log_),
      gather_(context_, host_),
      counts_(context_, host_),
      p2p_(context_, log_),
      devices_({context_, host_, gather_, counts_, p2p_, log_}),
      children_(context_, gather_) {}

TuttiCommunicator::~TuttiCommunicator() { context_.queue.wait_idle(); }

bool TuttiCommunicator::goes_by_fragments(const Call& call) const {
  return context_.multi_host() && device::any_on_device(call.send, call.recv);
}

Status TuttiCommunicator::run(const Call& call) {
  TUTTI_TRY(context_.usable());
  if (goes_by_fragments(call)) [[unlikely]] {
    if (context_.health.failed()) return context_.health.status();
    TUTTI_TRY(validate(call, rank(), size(), context_.name));
    TUTTI_ASSIGN(const int device, devices_.device_of(call));
    return devices_.run({&call, 1}, device);
  }
  context_.use_callers_thread();
  return execute(call);
}

Status TuttiCommunicator::execute(const Call& call) {
  if (context_.health.failed()) return context_.fail(context_.health.status());
  TUTTI_TRY(validate(call, rank(), size(), context_.name));
  int device = -1;
  if (device::any_on_device(call.send, call.recv)) [[unlikely]] {
    TUTTI_ASSIGN(device, devices_.device_of(call));
  }
  TUTTI_TRY(host_.bound_run_ahead());
  if (call.collective == Collective::all_to_allv) return execute_all_to_allv(call, device);
  if (call.count == 0 && call.collective != Collective::barrier) return host_.run_empty(call);
  if (device >= 0) return devices_.run({&call, 1}, device);
  return host_.run(call);
}

Status TuttiCommunicator::execute_all_to_allv(const Call& call, int device) {
  const auto n = static_cast<std::size_t>(size());
  const bool has_buffers = call.send != nullptr || call.recv != nullptr;
  TUTTI_TRY(counts_.run(call, device >= 0 ? PeerCounts::kOnDevice : has_buffers ? PeerCounts::kOnHost : 0));
  Call data = call;
  data.count = std::max(call.count, counts_.largest_piece());
  if (data.count == 0) return {};
  data.count = executor::rounded_piece(data.count);
  if (counts_.any_in(PeerCounts::kOnDevice)) {
    return counts_.any_in(PeerCounts::kOnHost) ? counts_.mixed_memories() : devices_.run_uneven(data, device);
  }
  TUTTI_TRY(host_.bound_run_ahead());
  TUTTI_ASSIGN(const PreparedCall* const prepared, host_.prepared(data));
  executor::Announcement announcement = prepared->announcement;
  announcement.bytes = std::accumulate(call.send_counts, call.send_counts + n, std::size_t{0}) * size_of(call.type);
  const std::size_t received = std::accumulate(call.recv_counts, call.recv_counts + n, std::size_t{0});
  executor::UnevenPieces uneven = counts_.pieces_of(call);
  uneven.streaming = received * size_of(call.type) > context_.streaming_above;
  return host_.run(*prepared, data, announcement, &uneven);
}

Status TuttiCommunicator::run_together(std::span<const Call> calls) {
  TUTTI_TRY(context_.usable());
  if (!context_.multi_host()) {
    context_.use_callers_thread();
    if (context_.health.failed()) return context_.fail(context_.health.status());
  }
  int device = -1;
  for (const Call& call : calls) {
    TUTTI_TRY(validate(call, rank(), size(), context_.name));
    TUTTI_ASSIGN(const int other, devices_.device_of(call));
    if (device >= 0 && other >= 0 && device != other) {
      return invalid_argument(fmt::format("{} groups calls on memory of GPU {} and of GPU {}; expected one GPU",
                                          context_.name, device, other));
    }
    device = std::max(device, other);
  }
  const auto alone = [this](const Call& call) {
    return context_.multi_host() || call.count == 0 || call.collective == Collective::all_to_allv;
  };
  while (!calls.empty()) {
    std::size_t count = 1;
    const Call& first = calls.front();
    while (!alone(first) && count < calls.size() && !alone(calls[count]) && calls[count].stream == first.stream)
      ++count;
    if (count == 1) {
      TUTTI_TRY(run(first));
    } else {
      TUTTI_TRY(host_.bound_run_ahead());
      TUTTI_TRY(devices_.run(calls.first(count), device));
    }
    calls = calls.subspan(count);
  }
  return {};
}

Result<std::shared_ptr<PendingWork>> TuttiCommunicator::start(const Call& call) {
  TUTTI_TRY(context_.usable());
  TUTTI_TRY(validate(call, rank(), size(), context_.name));
  TUTTI_ASSIGN(const int device, devices_.device_of(call));
  if (device >= 0) return finished_work(run(call));  // the stream is the queue
  return context_.queue.start([this, copy = CallCopy(call, size())] {
    context_.waiter.set_background(true);
    return execute(copy.call());
  });
}

Result<int> TuttiCommunicator::checked_device_of(std::span<const Transfer> transfers) const {
  TUTTI_TRY(validate(transfers, size(), context_.name));
  const bool on_device = std::any_of(transfers.begin(), transfers.end(),
                                     [](const Transfer& t) { return device::kind_of(t.buffer).on_device(); });
  TUTTI_TRY(check_apart(transfers, rank(), on_device, context_.name));
  return on_device ? devices_.device_of(transfers) : Result<int>(-1);
}

Status TuttiCommunicator::run_group(std::span<const Transfer> transfers) {
  TUTTI_TRY(context_.usable());
  if (!context_.queue.idle()) {
    TUTTI_ASSIGN(const std::shared_ptr<PendingWork> work, start_group(transfers));
    const AsyncQueue::CallerWaits waits(context_.queue);
    (void)work->wait_for(std::chrono::nanoseconds::max());
    return work->status();
  }
  context_.waiter.set_background(false);
  if (context_.health.failed()) return context_.fail(context_.health.status());
  if (transfers.empty()) return {};
  TUTTI_ASSIGN(const int device, checked_device_of(transfers));
  return device >= 0 ? devices_.run_p2p(transfers, device) : p2p_.run(transfers);
}

Result<std::shared_ptr<PendingWork>> TuttiCommunicator::start_group(std::span<const Transfer> transfers) {
  TUTTI_TRY(context_.usable());
  TUTTI_ASSIGN(const int device, checked_device_of(transfers));
  return device >= 0 ? finished_work(devices_.run_p2p(transfers, device)) : p2p_.start(transfers);
}

Status TuttiCommunicator::open_device(int device) {
  TUTTI_TRY(context_.usable());
  return devices_.open(device);
}

Status TuttiCommunicator::set_timeout(std::chrono::milliseconds timeout) {
  TUTTI_TRY(context_.usable());
  TUTTI_ASSIGN(context_.options.timeout, checked_timeout(timeout));
  context_.waiter.set_timeout(context_.options.timeout);
  devices_.set_timeout(context_.options.timeout);
  return {};
}

void TuttiCommunicator::abort(const std::string& reason) {
  if (!context_.usable().ok()) return;
  (void)context_.health.fail(Code::aborted, fmt::format("{} aborted the communicator: {}", context_.name, reason));
}

Explanation TuttiCommunicator::explain_last_call() const {
  context_.queue.wait_idle();
  Explanation explanation = log_.last();
  if (log_.is_staged()) explanation.reason += devices_.refusals();
  return explanation;
}

MemoryReport TuttiCommunicator::memory() const {
  context_.queue.wait_idle();
  MemoryReport report;
  report.scratch = context_.transport->memory() + host_.executor().walker.bounce_bytes();
  report.messages = p2p_.unexpected_bytes();
  report.plans = host_.plan_bytes();
  devices_.add_to(report);
  return report;
}

Traffic TuttiCommunicator::traffic() const {
  context_.queue.wait_idle();
  const executor::HostExecutor& host = host_.executor();
  return {host.entry.sequence() + devices_.calls(), host.walker.bytes() + p2p_.bytes(), host.walker.signals()};
}

}  // namespace tutti
