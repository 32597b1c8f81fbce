#include "collectives/communicator/self_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "collectives/calls/async_queue.h"
#include "collectives/device/device_copy.h"
#include "device/memory_kind.h"

namespace tutti {
namespace {

using Clock = std::chrono::steady_clock;

std::size_t bytes_of(const Transfer& transfer) { return transfer.count * size_of(transfer.type); }

}  // namespace

/// The receives of one group: done when none of them waits any more, or at the deadline.
class SelfMessages::Receives final : public PendingWork {
 public:
  Receives(std::chrono::milliseconds timeout, std::string name)
      : timeout_(timeout), name_(std::move(name)), until_(Clock::now() + timeout) {}

  void expect() { ++left_; }
  /// One of them has ended, or (`group`) the group itself has begun. What hangs on the end is called without any lock.
  QueuedWork::Callbacks ended(const Status& status, bool group = false) {
    if (status_.ok()) status_ = status;
    if (!group) --left_;
    return left_ == 0 ? work_.settle(status_) : QueuedWork::Callbacks();
  }

  /// The deadline has ended it: its receives wait for nothing any more.
  bool over() const { return Clock::now() >= until_; }

  bool wait_for(std::chrono::nanoseconds limit) override {
    const auto left = std::max<std::chrono::nanoseconds>(until_ - Clock::now(), std::chrono::nanoseconds(0));
    if (work_.wait_for(std::min(limit, left))) return true;
    if (Clock::now() < until_) return false;
    work_.finish({Code::timeout, fmt::format("{} is alone and has not sent itself what it receives; it waited {:.1f} s",
                                             name_, std::chrono::duration<double>(timeout_).count())});
    return true;
  }
  Status status() const override { return work_.status(); }
  void then(std::function<void()> callback) override { work_.then(std::move(callback)); }

 private:
  const std::chrono::milliseconds timeout_;
  const std::string name_;
  const Clock::time_point until_;
  int left_ = 0;  // guarded by the communicator's mutex, as is the next one
  Status status_;
  QueuedWork work_;
};

Status SelfMessages::hand_over(const Transfer& send, const Transfer& receive) const {
  if (send.count != receive.count || send.type != receive.type) {
    return {Code::mismatch, fmt::format("{} sends {} x {} to itself and receives {} x {}", name_, send.count,
                                        name_of(send.type), receive.count, name_of(receive.type))};
  }
  if (receive.source != nullptr) *receive.source = 0;
  if (send.count == 0) return {};
  if (device::any_on_device(send.buffer, receive.buffer)) {
    return copy_on_device(receive.buffer, send.buffer, bytes_of(send), send.stream);
  }
  std::memmove(receive.buffer, send.buffer, bytes_of(send));
  return {};
}

/// Whether `from` had a message for it, the oldest of that tag.
bool SelfMessages::take(std::deque<Message>& from, const Transfer& receive, Status& status) const {
  const auto found =
      std::find_if(from.begin(), from.end(), [&](const Message& m) { return m.transfer.tag == receive.tag; });
  if (found == from.end()) return false;
  status = hand_over(found->transfer, receive);
  from.erase(found);
  return true;
}

Status SelfMessages::begin(std::span<const Transfer> transfers, const std::shared_ptr<Receives>& work) {
  QueuedWork::Callbacks callbacks;
  Status failed;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(waiting_, [](const Waiting& w) { return w.work->over(); });
    std::deque<Message> sent;
    for (const Transfer& t : transfers) {
      if (!t.sending) continue;
      const auto earlier =
          std::find_if(waiting_.begin(), waiting_.end(), [&](const Waiting& w) { return w.transfer.tag == t.tag; });
      if (earlier == waiting_.end()) {
        sent.push_back({t, {}});
        continue;
      }
      const Status status = hand_over(t, earlier->transfer);
      if (failed.ok()) failed = status;
      for (auto& callback : earlier->work->ended(status)) callbacks.push_back(std::move(callback));
      waiting_.erase(earlier);
    }
    for (const Transfer& t : transfers) {
      Status status;
      if (t.sending || !failed.ok()) continue;
      if (take(messages_, t, status) || take(sent, t, status)) {
        failed = status;
      } else {
        work->expect();
        waiting_.push_back({t, work});
      }
    }
    for (Message& message : sent) {
      if (!failed.ok()) break;
      if (message.transfer.count > 0 && device::any_on_device(message.transfer.buffer, message.transfer.buffer)) {
        failed =
            unsupported(name_ + " is alone and sends itself device memory that it does not receive in the same group");
        break;
      }
      const auto* bytes = static_cast<const std::byte*>(message.transfer.buffer);
      message.bytes.assign(bytes, bytes + bytes_of(message.transfer));
      message.transfer.buffer = message.bytes.data();
      messages_.push_back(std::move(message));
    }
    if (!failed.ok()) std::erase_if(waiting_, [&](const Waiting& w) { return w.work == work; });
    if (failed.ok()) {
      for (auto& callback : work->ended({}, /*group=*/true)) callbacks.push_back(std::move(callback));
    }
  }
  for (const auto& callback : callbacks) callback();
  return failed;
}

Status SelfMessages::transfer(std::span<const Transfer> transfers) {
  const auto work = std::make_shared<Receives>(timeout_, name_);
  TUTTI_TRY(begin(transfers, work));
  const std::lock_guard lock(mutex_);
  const auto missing = std::find_if(waiting_.begin(), waiting_.end(), [&](const Waiting& w) { return w.work == work; });
  if (missing == waiting_.end()) return work->status();
  const int tag = missing->transfer.tag;
  std::erase_if(waiting_, [&](const Waiting& w) { return w.work == work; });
  return invalid_argument(fmt::format("{} is alone and receives a message of tag {} that it has not sent", name_, tag));
}

Result<std::shared_ptr<PendingWork>> SelfMessages::start(std::span<const Transfer> transfers) {
  const auto work = std::make_shared<Receives>(timeout_, name_);
  TUTTI_TRY(begin(transfers, work));
  return std::shared_ptr<PendingWork>(work);
}

void SelfMessages::fail(const Status& status) {
  QueuedWork::Callbacks callbacks;
  {
    const std::lock_guard lock(mutex_);
    for (const Waiting& waiting : waiting_) {
      for (auto& callback : waiting.work->ended(status)) callbacks.push_back(std::move(callback));
    }
    waiting_.clear();
    messages_.clear();
  }
  for (const auto& callback : callbacks) callback();
}

void SelfMessages::set_timeout(std::chrono::milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  timeout_ = timeout;
}

}  // namespace tutti
