#include "collectives/executor/wait/health.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/clock.h"

namespace tutti::executor {

namespace {

constexpr std::uint64_t kWriting = 0xFFFF;
// The bootstrap server answers within a millisecond, unless it is stopped.
constexpr std::chrono::milliseconds kVerdictLimit{500};
// A rank that dies between claiming and finishing its sentence must not silence the others for longer than this.
constexpr std::int64_t kWritingLimitNs = 1'000'000'000;

}  // namespace

bool Health::claim() {
  std::uint64_t none = 0;
  return board_->failure_code.compare_exchange_strong(none, kWriting, std::memory_order_acq_rel);
}

void Health::publish(Code code, const std::string& message) {
  const std::size_t length = std::min(message.size(), sizeof(board_->failure_text) - 1);
  std::memcpy(board_->failure_text, message.data(), length);
  board_->failure_text[length] = '\0';
  board_->failure_code.store(static_cast<std::uint64_t>(code), std::memory_order_release);
}

Status Health::status() const {
  std::uint64_t code = board_->failure_code.load(std::memory_order_acquire);
  if (code == 0) return {};
  for (const std::int64_t since = now_ns(); code == kWriting;
       code = board_->failure_code.load(std::memory_order_acquire)) {
    if (now_ns() - since > kWritingLimitNs) return {Code::peer_died, "a rank died while it reported a failure"};
    sched_yield();
  }
  return {static_cast<Code>(code), board_->failure_text};
}

Status Health::failure_on(const transport::Board& mirror) {
  const std::uint64_t code = mirror.failure_code.load(std::memory_order_acquire);
  if (code == 0) return {};
  return {static_cast<Code>(code), {mirror.failure_text, strnlen(mirror.failure_text, sizeof mirror.failure_text)}};
}

Status Health::fail(Code code, const std::string& message) {
  std::unique_lock lock(mutex_);
  if (pending_ || !claim()) {
    lock.unlock();
    return status();
  }
  pending_ = true;
  const auto notify = notify_;
  const auto notify_over_network = notify_over_network_;
  lock.unlock();
  const bool verdict = notify && notify(code, message);
  lock.lock();
  if (verdict) verdict_.wait_for(lock, kVerdictLimit, [this] { return !pending_; });
  const bool open = std::exchange(pending_, false);
  if (open) publish(code, message);
  lock.unlock();
  if (open && notify_over_network) notify_over_network(code, message);
  return status();
}

void Health::fail_quietly(Code code, const std::string& message) {
  {
    const std::lock_guard lock(mutex_);
    if (pending_ || claim()) publish(code, message);
    pending_ = false;
  }
  verdict_.notify_all();
}

void Health::set_notify(std::function<bool(Code, const std::string&)> notify,
                        std::function<void(Code, const std::string&)> notify_over_network) {
  const std::lock_guard lock(mutex_);
  notify_ = std::move(notify);
  notify_over_network_ = std::move(notify_over_network);
}

}  // namespace tutti::executor
