// What no_sync() gives: while one lives, backward passes of its maker do not communicate.
#pragma once

#include <utility>

namespace tutti::training {

/// Counts itself in its maker's depth, so guards nest. Must not outlive its maker.
class NoSync {
 public:
  explicit NoSync(int* depth) : depth_(depth) { ++*depth_; }
  NoSync(NoSync&& other) noexcept : depth_(std::exchange(other.depth_, nullptr)) {}
  NoSync& operator=(NoSync&&) = delete;
  ~NoSync() {
    if (depth_ != nullptr) --*depth_;
  }

 private:
  int* depth_;
};

}  // namespace tutti::training
