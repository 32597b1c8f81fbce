// Sends and receives of Tutti's own communicator. A blocking group runs on the caller's thread when nothing else is
// under way. Groups that are started asynchronously run on the communicator's own thread, in one operation of its
// queue: as long as that is the last one in the queue and has not ended, the groups that are started next join it. So a
// collective waits for all that was started before it, and what is started after it waits for it; between two
// collectives sends and receives progress independently of each other.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "base/clock.h"
#include "collectives/calls/validate.h"
#include "collectives/communicator/communicator.h"
#include "collectives/communicator/started_groups.h"
#include "device/memory_kind.h"

namespace tutti {

namespace {

// Up to here a message that can be moved at once is moved by whoever starts it: waking the other thread takes longer.
constexpr std::size_t kAtOnceBytes = std::size_t{64} << 10;

std::size_t bytes_of(std::span<const Transfer> transfers) {
  std::size_t bytes = 0;
  for (const Transfer& t : transfers) bytes += t.count * size_of(t.type);
  return bytes;
}

bool any_on_device(std::span<const Transfer> transfers) {
  return std::any_of(transfers.begin(), transfers.end(),
                     [](const Transfer& t) { return device::kind_of(t.buffer).on_device(); });
}

}  // namespace

Status TuttiCommunicator::run_group(std::span<const Transfer> transfers) {
  TUTTI_TRY(usable());
  if (!queue_.idle()) {
    TUTTI_ASSIGN(const std::shared_ptr<PendingWork> work, start_group(transfers));
    waits_since_ns_.store(now_ns());
    (void)work->wait_for(std::chrono::nanoseconds::max());
    waits_since_ns_.store(0);
    return work->status();
  }
  waiter_.set_background(false);
  if (health_.failed()) return failed(health_.status());
  TUTTI_TRY(validate(transfers, size(), own_name_));
  const bool on_device = any_on_device(transfers);
  TUTTI_TRY(check_apart(transfers, rank_, on_device, own_name_));
  if (on_device) [[unlikely]]
    return run_group_on_device(transfers);
  const std::uint64_t number = announce(transfers);
  return ended(number, transfers_.run(transfers));
}

Result<std::shared_ptr<PendingWork>> TuttiCommunicator::start_group(std::span<const Transfer> transfers) {
  TUTTI_TRY(usable());
  TUTTI_TRY(validate(transfers, size(), own_name_));
  const bool on_device = any_on_device(transfers);
  TUTTI_TRY(check_apart(transfers, rank_, on_device, own_name_));
  if (on_device) [[unlikely]]
    return finished_work(run_group_on_device(transfers));
  auto group = std::make_unique<StartedGroup>();
  group->transfers.assign(transfers.begin(), transfers.end());
  std::shared_ptr<PendingWork> work = group->work;
  if (started_ != nullptr && started_->offer(group)) {
    executor::wake_any(board_.doze);
    return work;
  }
  if (queue_.idle() && bytes_of(transfers) <= kAtOnceBytes) {
    if (health_.failed()) return finished_work(failed(health_.status()));
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
  const Status posted = queue_.post([this, groups = started_] { return carry_out(*groups); });
  if (posted.ok()) return work;
  (void)started_->close();
  if (!begun) return posted;
  // What its peers have seen of it cannot be taken back.
  const Status failure = failed(posted);
  transfers_.drop();
  return failure;
}

std::uint64_t TuttiCommunicator::announce(std::span<const Transfer> transfers) {
  executor::announce_group(board_, ++groups_, transfers);
  return groups_;
}

void TuttiCommunicator::begin(StartedGroup& group) {
  group.number = announce(group.transfers);
  group.begun = true;
}

Status TuttiCommunicator::ended(std::uint64_t number, Status status) {
  if (status.ok() && health_.failed()) status = health_.status();
  executor::end_group(board_, number, status.ok());
  last_ = nullptr;
  if (watched_) told(executor::snapshot(board_.groups[number % transport::kCallRing]), "mailboxes", "mailboxes");
  return status.ok() ? status : failed(status);
}

AsyncQueue::Endings TuttiCommunicator::carry_out(StartedGroups& groups) {
  waiter_.set_background(true);
  StartedGroups::Groups running;
  AsyncQueue::Endings endings;
  Status status = health_.status();
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
    if (group->begun) executor::end_group(board_, group->number, false);
  }
  status = failed(status);
  transfers_.drop();
  for (const auto& group : running) endings.emplace_back(group->work, status);
  return endings;
}

}  // namespace tutti
