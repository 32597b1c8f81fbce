// A call on device memory as fragments on host memory: which parts of its buffers are copied for each, and the call on
// the host that each fragment is.
//
//   all_reduce of 10 M x f32 in slots of 4 MiB:        10 fragments, each an all_reduce of 1 M x f32
//   all_gather of 1 M x f32 by 8 ranks, same slots:    8 fragments, each an all_gather of 128 K x f32
//
// How: all ranks cut their blocks into parts of the same size, so they take the same fragments. An all_to_allv has
//   pieces of different sizes. In fragment t each piece has what lies behind its first t parts, if anything. It begins
//   in the slot where a whole part of each piece before it would end.
// Threads: pure; any.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "base/even_share.h"
#include "collectives/calls/call_copy.h"
#include "collectives/device/multi_host/host_staging.h"
#include "collectives/executor/uneven.h"

namespace tutti {

class HostStagedCall {
 public:
  /// REQUIRES: the call is valid. `slot_bytes`: for what goes in, and for what comes out.
  HostStagedCall(const Call& call, int rank, int ranks, std::size_t slot_bytes);

  /// Valid for as long as this object stays where it is.
  Call whole() const { return copy_.call(); }
  bool uneven() const { return whole().collective == Collective::all_to_allv; }
  /// The most elements of a block in a fragment: what all ranks must have in common.
  std::size_t part() const { return part_; }
  /// How many fragments blocks of so many elements take; one at least.
  std::size_t fragments_for(std::size_t count) const { return count <= part_ ? 1 : largest_share(count, part_); }
  /// How many this rank has data for. Of an all_to_allv other ranks may have more.
  std::size_t fragments() const;

  /// Returns the copies in and out of these slots for fragment `fragment` (from 0).
  HostStaging::Fragment copies(std::size_t fragment, std::byte* input, std::byte* output) const;
  /// The call on the host. Not of an all_to_allv.
  Call call(std::size_t fragment, const std::byte* input, std::byte* output) const;

  /// Fragment `fragment` of an all_to_allv: this rank's pieces, and the counts that the peers announce for theirs.
  struct Pieces {
    std::vector<std::size_t> send_counts;
    std::vector<std::size_t> recv_counts;
    std::vector<std::size_t> offsets;  // of both
    std::vector<executor::PeerCounts> told;
  };
  /// `told`: of the whole call, by peer.
  Pieces pieces(std::size_t fragment, std::span<const executor::PeerCounts> told) const;

 private:
  /// Returns how many elements of a block of `count` are in fragment `fragment`.
  std::size_t size_in(std::size_t fragment, std::size_t count) const {
    const std::size_t done = fragment * part_;
    return done >= count ? 0 : std::min(part_, count - done);
  }
  std::size_t blocks(bool input) const;

  const CallCopy copy_;
  const int rank_;
  const std::size_t ranks_;
  const std::size_t element_;
  std::size_t part_ = 1;
};

}  // namespace tutti
