// Puts that are written where their receiver would copy them to, rather than to the slot that they were sent to.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace tutti::tcp {

/// Few at a time: those that a rank waits for. Not thread-safe.
class Redirects {
 public:
  void add(const std::byte* slot, std::size_t bytes, std::byte* to) { all_.push_back({slot, bytes, to}); }
  /// Called when a put of `bytes` to `slot` begins. Returns where it goes instead; null: to the slot.
  std::byte* begin(const std::byte* slot, std::size_t bytes) {
    const auto one = find(slot);
    if (one == all_.end() || one->bytes != bytes || one->has_begun) return nullptr;
    one->has_begun = true;
    return one->to;
  }
  /// Returns where that put goes on; null if no caller waits for it any more.
  std::byte* find_begun(const std::byte* slot) {
    const auto one = find(slot);
    return one == all_.end() ? nullptr : one->to;
  }
  /// Returns true if that put has begun.
  bool remove(const std::byte* slot) {
    const auto one = find(slot);
    if (one == all_.end()) return false;
    const bool had_begun = one->has_begun;
    *one = all_.back();
    all_.pop_back();
    return had_begun;
  }

 private:
  struct Redirect {
    const std::byte* slot;
    std::size_t bytes;
    std::byte* to;
    bool has_begun = false;
  };
  std::vector<Redirect>::iterator find(const std::byte* slot) {
    return std::find_if(all_.begin(), all_.end(), [slot](const Redirect& one) { return one.slot == slot; });
  }
  std::vector<Redirect> all_;
};

}  // namespace tutti::tcp
