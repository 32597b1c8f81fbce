// The communicators that are made from another one: of some of its ranks (split), of those that are left (shrink). What
// their ranks tell each other meanwhile goes through the one that they come from.
//
// Threads: the caller's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "collectives/calls/comm_context.h"
#include "collectives/calls/control_gather.h"
#include "collectives/communicator/survivors.h"
#include "collectives/communicator_interface.h"

namespace tutti {

class Children {
 public:
  /// Both outlive it.
  Children(CommContext& context, ControlGather& gather) : context_(context), gather_(gather) {}

  /// A collective call of all ranks. Returns null for a negative color. Errors: invalid_argument (the name; before any
  /// exchange).
  Result<std::shared_ptr<CommunicatorInterface>> split(int color, int key, const std::string& name);
  /// A collective call of the ranks that are alive. The communicator serves no call any more.
  Result<std::shared_ptr<CommunicatorInterface>> shrink();

 private:
  /// Errors: peer_died (meanwhile; may be tried again), timeout.
  Result<std::shared_ptr<CommunicatorInterface>> shrink_once(Survivors& survivors, int attempt);

  CommContext& context_;
  ControlGather& gather_;
  std::uint64_t splits_ = 0;
  std::uint64_t shrinks_ = 0;
};

}  // namespace tutti
