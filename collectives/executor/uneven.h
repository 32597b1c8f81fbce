// The pieces of an all_to_allv. Its plans are those of all_to_all, in which piece j of rank i's input is what i has for
// j; here each piece has its own size, and its own place on either side.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/even_share.h"
#include "collectives/plan/plan.h"

namespace tutti::executor {

/// The counts that a rank announces to a peer before the data moves. In elements.
struct PeerCounts {
  /// In `largest`: the kind of memory that the sender's buffers are in. Neither when it has none.
  static constexpr std::uint64_t kOnDevice = std::uint64_t{1} << 63;
  static constexpr std::uint64_t kOnHost = std::uint64_t{1} << 62;

  std::uint64_t count = 0;
  std::uint64_t offset = 0;   // in the sender's input
  std::uint64_t largest = 0;  // of all that the sender sends or receives

  std::uint64_t largest_piece() const { return largest & ~(kOnDevice | kOnHost); }
};

/// Rounds a piece up, by an eighth at most, so that what is prepared for one size serves many.
constexpr std::size_t rounded_piece(std::size_t largest) {
  return round_up(largest, std::max<std::size_t>(std::bit_floor(largest) / 8, 1));
}

/// The pieces as `rank` knows them: by peer, what it sends, what it receives, and what the peer announced. In elements.
struct UnevenPieces {
  int rank = 0;
  std::span<const std::size_t> send_counts;
  std::span<const std::size_t> send_offsets;
  std::span<const std::size_t> recv_counts;
  std::span<const std::size_t> recv_offsets;
  std::span<const PeerCounts> peer_counts;
  bool streaming = false;  // as Prepared::streaming, for these sizes

  /// The i-th piece of a range. REQUIRES: it lies in `rank`'s input or output, or is a peer's input for `rank`.
  Share share_of(const plan::Range& range, int i) const {
    const auto piece = static_cast<std::size_t>(range.first + i);
    if (range.space == plan::Space::output) return {recv_offsets[piece], recv_counts[piece]};
    if (range.rank == rank) return {send_offsets[piece], send_counts[piece]};
    const PeerCounts& counts = peer_counts[static_cast<std::size_t>(range.rank)];
    return {counts.offset, counts.count};
  }
};

}  // namespace tutti::executor
