// The all_gather of a few words among the ranks of a communicator, by which they agree on a split, or on the device
// memory that they open to each other.
//
// Threads: one at a time, the thread that runs calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "collectives/calls/host_path.h"

namespace tutti {

class ControlGather {
 public:
  ControlGather(CommContext& context, HostPath& host) : context_(context), host_(host) {}

  /// Returns the words of all ranks, in rank order. All ranks give as many. Peers see the exchange as the call `as`, of
  /// which it is a part.
  Result<Words> gather(const executor::CallIdentity& as, const Words& mine);
  /// Gathers the words as a call of its own. Threads: the caller's.
  Result<Words> gather(const Words& mine);
  /// Waits for all ranks, as a call of its own. Threads: the caller's.
  Status barrier();
  /// Returns empty if no rank has given 0 as the first of its `width` words; else the sentence of the first that has.
  /// `mine`: this rank's own sentence.
  std::string refusal(const Words& all, std::size_t width, const Status& mine) const;

 private:
  /// Runs a call of its own.
  Status run(const Call& call);
  Call call_of(const Words& mine, Words& all) const;

  CommContext& context_;
  HostPath& host_;
};

}  // namespace tutti
