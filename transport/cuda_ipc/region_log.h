// What the ranks of a communicator publish about their device memory: a block of host memory per rank that all of them
// map, zeroed before.
// How: a rank's events say which allocations it opens to its peers (regions) and which it takes back. Peers carry them
//   out in their order, each at its next call, and publish how far they are. So no rank waits for another: as long as a
//   peer does not know a region, its owner does not name it.
// Threads: each rank writes its own block only, but for `detached`; what peers poll is atomic.
// Limits: kRegions of one rank at a time; kRegionLogRing events that some peer has not carried out; kMostDeviceRanks
//   ranks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/cuda_ipc/exportable.h"
#include "transport/device_window.h"

namespace tutti::transport {

inline constexpr int kRegions = 512;  // of one rank at a time
inline constexpr std::uint64_t kRegionLogRing = 64;

enum class RegionEventKind : std::uint32_t { none, open, close };

struct RegionEvent {
  RegionEventKind kind = RegionEventKind::none;
  std::uint32_t region = 0;
  std::uint64_t base = 0;  // in the owner's address space
  Export how;
};

/// A rank's description of itself, written once.
struct IpcPeerInfo {
  std::int64_t pid = 0;
  std::uint64_t process = 0;  // a random number: pids are used again
  unsigned char gpu[16] = {};
  std::int32_t device = 0;   // the GPU's ordinal in that process
  std::int32_t code = 0;     // tutti::Code, when it cannot go on; why[] says it
  std::uint64_t window = 0;  // in the owner's address space
  Export how;
  char socket[64] = {};  // where it takes descriptors
  unsigned char token[16] = {};
  char why[512] = {};
};

struct RegionLog {
  IpcPeerInfo info;
  std::atomic<std::uint64_t> detached{0};   // the ranks that will not touch this rank's window again, a bit each
  std::atomic<std::uint64_t> announced{0};  // events so far; event n lies at ring[n % kRegionLogRing]
  std::atomic<std::uint64_t> applied[kMostDeviceRanks] = {};                 // of each peer's events
  std::atomic<std::uint64_t> refused[kMostDeviceRanks][kRegions / 64] = {};  // peers' regions that cannot be had here
  RegionEvent ring[kRegionLogRing];
};

/// The logs of all ranks, as one of them uses them.
class RegionLogs {
 public:
  /// `all`: by rank; outlives it. `rank`: this one's.
  RegionLogs(const std::vector<RegionLog*>& all, int rank) : all_(all), rank_(static_cast<std::size_t>(rank)) {}

  RegionLog& own() const { return *all_[rank_]; }
  /// Returns how many events this rank has announced.
  std::uint64_t events() const { return own().announced.load(std::memory_order_relaxed); }
  /// Returns true if all peers have applied this rank's event.
  bool is_applied(std::uint64_t event) const {
    for (std::size_t r = 0; r < all_.size(); ++r) {
      if (r != rank_ && all_[r]->applied[rank_].load(std::memory_order_acquire) < event) return false;
    }
    return true;
  }
  /// Returns true if one more event may be announced: a place in the ring is free when all have read what lies there.
  bool has_room() const { return events() < kRegionLogRing || is_applied(events() - kRegionLogRing + 1); }
  /// REQUIRES: has_room().
  void append(const RegionEvent& event) const {
    const std::uint64_t number = events();
    own().ring[number % kRegionLogRing] = event;
    own().announced.store(number + 1, std::memory_order_release);
  }

 private:
  const std::vector<RegionLog*>& all_;
  const std::size_t rank_;
};

}  // namespace tutti::transport
