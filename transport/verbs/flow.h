// The arithmetic of a send queue and of the bounce buffers before it. Pure, so that it can be tested without a device.
// Threads: one at a time.
// Limits: a send queue takes 32 to 256 work requests.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "base/check.h"

namespace tutti::transport::verbs {

/// Counts what is under way in a send queue. Work requests are numbered from 1 and complete in order; only some ask for
/// a completion (they are "signalled"), which then stands for all before it. At least one in each quarter of the queue
/// is, so a full queue always has a completion to come.
class SendWindow {
 public:
  explicit SendWindow(std::uint32_t depth) : depth_(depth) { TUTTI_CHECK_LE(4u, depth); }

  std::uint32_t room() const { return depth_ - static_cast<std::uint32_t>(posted_ - completed_); }
  std::uint64_t posted() const { return posted_; }
  std::uint64_t completed() const { return completed_; }
  bool idle() const { return posted_ == completed_; }

  struct Next {
    std::uint64_t number;
    bool signalled;
  };
  /// The next request is going out. `asks`: it wants a completion of its own. REQUIRES: room().
  Next post(bool asks) {
    TUTTI_CHECK_LT(0u, room());
    ++posted_;
    const bool signalled = asks || posted_ - last_signalled_ >= depth_ / 4;
    if (signalled) last_signalled_ = posted_;
    return {posted_, signalled};
  }

  /// A completion of request `number` has come, and of all before it.
  void complete(std::uint64_t number) {
    TUTTI_CHECK_LE(number, posted_);
    completed_ = std::max(completed_, number);
  }

 private:
  std::uint32_t depth_;
  std::uint64_t posted_ = 0;
  std::uint64_t completed_ = 0;
  std::uint64_t last_signalled_ = 0;
};

/// How deep the send queue of each of `links` links may be, whose completions share one queue that holds `most_entries`
/// and must not overrun: after a failure every request gives one. 0: so many links do not fit.
constexpr std::uint32_t send_queue_depth(int links, int most_requests, int most_entries) {
  constexpr int kWanted = 256;
  constexpr int kLeast = 32;
  const int depth = std::min({kWanted, most_requests, most_entries / std::max(links, 1)});
  return depth < kLeast ? 0 : static_cast<std::uint32_t>(depth);
}

/// Chunks of bounce buffers, shared by all links.
class ChunkPool {
 public:
  explicit ChunkPool(std::uint32_t chunks) : all_(chunks) {
    for (std::uint32_t c = chunks; c > 0; --c) free_.push_back(c - 1);
  }
  std::optional<std::uint32_t> take() {
    if (free_.empty()) return std::nullopt;
    const std::uint32_t chunk = free_.back();
    free_.pop_back();
    return chunk;
  }
  void give(std::uint32_t chunk) { free_.push_back(chunk); }
  std::size_t left() const { return free_.size(); }
  std::size_t all() const { return all_; }

 private:
  std::vector<std::uint32_t> free_;
  const std::size_t all_;
};

/// The part of the pool that one link's requests read from: small ones share a chunk, one behind the other.
class BounceQueue {
 public:
  BounceQueue(ChunkPool& pool, std::size_t chunk_bytes) : pool_(pool), chunk_bytes_(chunk_bytes) {}

  struct Place {
    std::uint32_t chunk;
    std::size_t at;
  };
  /// Returns where `bytes` can be copied to, for a request that will have this number; none if the pool is empty.
  /// REQUIRES: bytes <= chunk_bytes, numbers grow.
  std::optional<Place> take(std::size_t bytes, std::uint64_t number) {
    TUTTI_CHECK_LE(bytes, chunk_bytes_);
    if (used_.empty() || filled_ + bytes > chunk_bytes_) {
      const std::optional<std::uint32_t> chunk = pool_.take();
      if (!chunk) return std::nullopt;
      used_.push_back({*chunk, 0});
      filled_ = 0;
    }
    used_.back().last = number;
    const Place place{used_.back().chunk, filled_};
    filled_ += (bytes + 63) / 64 * 64;
    return place;
  }
  bool empty() const { return used_.empty(); }
  /// All requests up to this one have been read.
  void release(std::uint64_t number) {
    for (; !used_.empty() && used_.front().last <= number; used_.pop_front()) pool_.give(used_.front().chunk);
  }

 private:
  struct Used {
    std::uint32_t chunk;
    std::uint64_t last;
  };
  ChunkPool& pool_;
  const std::size_t chunk_bytes_;
  std::deque<Used> used_;
  std::size_t filled_ = 0;  // of the last one
};

}  // namespace tutti::transport::verbs
