// The all_gather of a few words among the ranks of a communicator, by which they agree on what is theirs to agree on: a
// split, device memory that they open to each other.
//
// Threads: one at a time, the thread that runs calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"
#include "collectives/calls/host_path.h"

namespace tutti {

class ControlGather {
 public:
  ControlGather(CommContext& context, HostPath& host) : context_(context), host_(host) {}

  /// Returns the words of all ranks, one rank's behind the other's. All give as many. The other ranks see it as the
  /// call `as`, of which it is a part.
  Result<Words> gather(const executor::CallIdentity& as, std::span<const std::uint64_t> mine);
  /// The same as a call of its own. By the caller's thread.
  Result<Words> gather(const Words& mine);
  /// Waits for all ranks, as a call of its own. By the caller's thread.
  Status barrier();
  /// Returns whether a rank has given 0 as the first of its `width` words: empty, none has. Else the sentence why:
  /// `mine`, where it is this rank.
  std::string refusal(const Words& all, std::size_t width, const Status& mine) const;

 private:
  /// Runs a call of its own.
  Status run(const Call& call);
  Call call_of(std::span<const std::uint64_t> mine, Words& all) const;

  CommContext& context_;
  HostPath& host_;
};

}  // namespace tutti
