#include "collectives/calls/p2p_queue.h"

#include <algorithm>
#include <utility>

#include "collectives/calls/window_sizing.h"
#include "collectives/executor/record.h"

namespace tutti {

namespace {

// A message of so many bytes that can be moved at once is moved by the thread that starts it: to wake the other thread
// takes longer.
constexpr std::size_t kAtOnceBytes = std::size_t{64} << 10;

std::size_t bytes_of(std::span<const Transfer> transfers) {
  std::size_t bytes = 0;
  for (const Transfer& t : transfers) bytes += t.count * size_of(t.type);
  return bytes;
}

}  // namespace

P2pQueue::P2pQueue(CommContext& context, CallLog& log)
    : context_(context),
      log_(log),
      transfers_(*context.transport, context.waiter, context.health, context.rank, context.streaming_above,
                 limit_of_messages(*context.transport, context.options)) {}

Status P2pQueue::run(std::span<const Transfer> transfers) {
  const std::uint64_t number = announce(transfers);
  return ended(number, transfers_.run(transfers));
}

Result<std::shared_ptr<PendingWork>> P2pQueue::start(std::span<const Transfer> transfers) {
  AsyncQueue& queue = context_.queue;
  auto group = std::make_unique<StartedGroup>();
  group->transfers.assign(transfers.begin(), transfers.end());
  std::shared_ptr<PendingWork> work = group->work;
  // Groups do not join those before another operation.
  if (started_as_ == queue.started() && started_ != nullptr && started_->offer(group)) {
    executor::wake_any(context_.board.sleep);
    return work;
  }
  if (queue.idle() && bytes_of(transfers) <= kAtOnceBytes) {
    if (context_.health.failed()) return finished_work(context_.fail(context_.health.status()));
    begin(*group);
    Status status = transfers_.start(group->transfers, group->batch);
    if (status.ok() && group->batch.left > 0) status = transfers_.poll();
    if (!status.ok()) transfers_.drop();
    // What has not left yet is for the other thread: this one may go away computing.
    if (!status.ok() || (group->batch.left == 0 && transfers_.settled())) {
      return finished_work(ended(group->number, status));
    }
  }
  const bool begun = group->begun;
  started_ = std::make_shared<StartedGroups>();
  (void)started_->offer(group);
  const Status posted = queue.post([this, groups = started_] { return run_on_queue(*groups); });
  started_as_ = queue.started();
  if (posted.ok()) return work;
  (void)started_->close();
  if (!begun) return posted;
  // What its peers have seen of it cannot be taken back.
  const Status failure = context_.fail(posted);
  transfers_.drop();
  return failure;
}

std::uint64_t P2pQueue::announce(std::span<const Transfer> transfers) {
  executor::announce_group(context_.board, ++groups_, transfers);
  return groups_;
}

void P2pQueue::begin(StartedGroup& group) {
  group.number = announce(group.transfers);
  group.begun = true;
}

Status P2pQueue::ended(std::uint64_t number, Status status) {
  if (status.ok() && context_.health.failed()) status = context_.health.status();
  executor::end_group(context_.board, number, status.ok());
  if (log_.is_watched()) {
    log_.report(executor::snapshot(context_.board.groups[number % transport::kCallRing]), "mailboxes", "mailboxes");
  }
  return status.ok() ? status : context_.fail(status);
}

AsyncQueue::Endings P2pQueue::run_on_queue(StartedGroups& groups) {
  context_.waiter.set_background(true);
  StartedGroups::Groups running;
  AsyncQueue::Endings endings;
  Status status = context_.health.status();
  while (status.ok()) {
    for (std::unique_ptr<StartedGroup>& group : groups.take()) running.push_back(std::move(group));
    for (auto group = running.begin(); status.ok() && group != running.end(); ++group) {
      if ((*group)->begun) continue;
      begin(**group);
      status = transfers_.start((*group)->transfers, (*group)->batch);
    }
    if (!status.ok()) break;
    const auto done =
        std::stable_partition(running.begin(), running.end(), [](const auto& group) { return group->batch.left > 0; });
    for (auto group = done; group != running.end(); ++group) {
      endings.emplace_back((*group)->work, ended((*group)->number, {}));
      if (status.ok()) status = endings.back().second;
    }
    running.erase(done, running.end());
    if (!status.ok()) break;
    const bool settled = transfers_.settled();
    if (running.empty() && settled && groups.close_if_empty()) return endings;  // finished when the queue is idle
    for (auto& [work, outcome] : endings) work->finish(std::move(outcome));
    endings.clear();
    if (!running.empty() || !settled) status = transfers_.progress(&groups.news());
  }
  for (std::unique_ptr<StartedGroup>& group : groups.close()) running.push_back(std::move(group));
  for (const auto& group : running) {
    if (group->begun) executor::end_group(context_.board, group->number, false);
  }
  status = context_.fail(status);
  transfers_.drop();
  for (const auto& group : running) endings.emplace_back(group->work, status);
  return endings;
}

}  // namespace tutti
