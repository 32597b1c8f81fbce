// The first half of an all_to_allv. A plan needs to know the size and the place of every piece that its rank touches,
// and all ranks must choose the same plan. So each rank first sends its counts to each other rank, by an all_to_all
// that is a call of its own.
//
// Threads: one at a time, the thread that runs calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "collectives/calls/host_path.h"
#include "collectives/executor/uneven.h"

namespace tutti {

class CountExchange {
 public:
  CountExchange(CommContext& context, HostPath& host) : context_(context), host_(host) {}

  /// `memory`: executor::PeerCounts::kOnDevice, kOnHost, or 0 where this rank has no buffers. Errors: mismatch (a peer
  /// sends what this rank does not expect).
  Status run(const Call& call, std::uint64_t memory);

  // Results of the last run().
  /// Returns the counts of each peer, by rank.
  std::span<const executor::PeerCounts> peers() const { return theirs_; }
  /// Returns the elements of the largest piece of any rank.
  std::size_t largest_piece() const;
  /// Returns whether a rank has its buffers in this memory.
  bool any_in(std::uint64_t memory) const;
  /// Returns this rank's pieces of `call`, whose lists must outlive them.
  executor::UnevenPieces pieces_of(const Call& call) const;
  /// Fails with the first rank on host memory and the first on device memory.
  Status mixed_memories();

 private:
  Status compare(const Call& call);

  CommContext& context_;
  HostPath& host_;
  std::vector<executor::PeerCounts> own_;     // by peer
  std::vector<executor::PeerCounts> theirs_;  // by peer
};

}  // namespace tutti
