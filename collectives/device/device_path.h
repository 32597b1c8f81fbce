// One way to run calls on device memory. The communicator asks them in a fixed order (device_paths.cc), the same on all
// ranks, and takes the first that wants the call and can be opened.
//
// Threads: by the caller's thread, one at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"
#include "collectives/call.h"
#include "collectives/executor/record.h"
#include "tutti/tutti.hpp"

namespace tutti {

class DevicePath {
 public:
  virtual ~DevicePath() = default;

  /// Returns whether the path is for this call; the same on all ranks.
  virtual bool wants(const Call& call) const = 0;
  /// Makes the path ready: a collective call of all ranks, at the first call that it wants. Returns false where some
  /// rank cannot; refusal() says why. `as`: what the other ranks see. Errors: failures of the communicator, and what
  /// leaves the call no other path.
  virtual Result<bool> open(int device, const executor::CallIdentity& as) = 0;
  /// Puts valid calls into their stream, and returns then. Several: on one stream, and only where together() is true.
  /// REQUIRES: open() has returned true.
  virtual Status run(std::span<const Call> calls) = 0;
  virtual bool together() const { return false; }
  /// Runs an all_to_allv whose counts have been exchanged. `data`: its count is that of the largest piece.
  virtual Status run_uneven(const Call& /*data*/, int /*device*/) { return unsupported("this path has even pieces"); }

  /// Returns whether a group of sends and receives goes this way, and those that follow.
  virtual bool takes_p2p() { return false; }
  virtual Status run_p2p(std::span<const Transfer> /*transfers*/, int /*device*/) {
    return unsupported("this path has no messages");
  }

  /// Returns the GPU that the path is open for; -1: none yet.
  virtual int device() const { return -1; }
  /// Returns why it was refused, as the end of a sentence; empty: it was not.
  virtual std::string refusal() const { return {}; }
  /// Adds what the path takes.
  virtual void add_to(MemoryReport& report) const = 0;
  /// Returns the calls that it has put into streams and that the host's executor has not counted.
  virtual std::uint64_t calls() const { return 0; }
  virtual void set_timeout(std::chrono::nanoseconds /*timeout*/) {}
};

}  // namespace tutti
