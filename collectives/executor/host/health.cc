#include "collectives/executor/host/health.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/clock.h"

namespace tutti::executor {

namespace {

constexpr std::uint32_t kWriting = 0xFFFF;
// A rank that dies between claiming and finishing its sentence must not silence the others for longer than this.
constexpr std::int64_t kWritingLimitNs = 100'000'000;

}  // namespace

bool Health::claim(Code code, const std::string& message) {
  std::uint32_t none = 0;
  if (!board_->failure_code.compare_exchange_strong(none, kWriting, std::memory_order_acq_rel)) return false;
  const std::size_t length = std::min(message.size(), sizeof(board_->failure_text) - 1);
  std::memcpy(board_->failure_text, message.data(), length);
  board_->failure_text[length] = '\0';
  board_->failure_code.store(static_cast<std::uint32_t>(code), std::memory_order_release);
  return true;
}

Status Health::status() const {
  std::uint32_t code = board_->failure_code.load(std::memory_order_acquire);
  if (code == 0) return {};
  for (const std::int64_t since = now_ns(); code == kWriting;
       code = board_->failure_code.load(std::memory_order_acquire)) {
    if (now_ns() - since > kWritingLimitNs) return {Code::peer_died, "a rank died while it reported a failure"};
    cpu_relax();
  }
  return {static_cast<Code>(code), board_->failure_text};
}

Status Health::fail(Code code, const std::string& message) {
  if (claim(code, message)) {
    std::function<void(Code, const std::string&)> tell;
    {
      const std::lock_guard lock(mutex_);
      tell = tell_;
    }
    if (tell) tell(code, message);
  }
  return status();
}

Status Health::fail_quietly(Code code, const std::string& message) {
  claim(code, message);
  return status();
}

void Health::set_tell(std::function<void(Code, const std::string&)> tell) {
  const std::lock_guard lock(mutex_);
  tell_ = std::move(tell);
}

}  // namespace tutti::executor
