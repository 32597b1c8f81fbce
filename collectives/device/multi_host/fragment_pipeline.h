// Calls on device memory that the host takes part in: cut into fragments, which the caller's thread puts into the
// stream, and which the communicator's own thread runs on host memory or over the network meanwhile
// (host_staging.h).
//
// The other ranks see each fragment as the whole call, so that the error of a rank that makes another call names the
// call that the caller has made. A failure reaches the caller by status() and the next call; the streams go on.
//
// Threads: run_fragments() and await_stream() by the queue's; the rest by the caller's.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "collectives/calls/comm_context.h"
#include "collectives/device/multi_host/host_staging.h"
#include "collectives/diagnostics/call_log.h"

namespace tutti {

class FragmentPipeline {
 public:
  /// Both outlive it.
  FragmentPipeline(CommContext& context, CallLog& log) : context_(context), log_(log) {}

  /// Makes the pinned memory, at the first time. Errors: as HostStaging::create().
  Status open(int device);
  HostStaging& staging() { return *staging_; }
  bool is_open() const { return staging_ != nullptr; }
  int device() const { return staging_ ? staging_->device() : -1; }
  std::size_t memory() const { return staging_ ? staging_->memory() : 0; }
  void set_timeout(std::chrono::nanoseconds timeout);
  /// Returns the bytes of a slot; the same on all ranks, if memory_limit is. Errors: memory_limit.
  Result<std::size_t> slot_bytes() const;

  /// Starts `on_host` on the queue, and puts `fragments` into the stream. Their numbers begin with `first`.
  Status enqueue(std::uint64_t first, std::span<const HostStaging::Fragment> fragments, Stream stream,
                 std::function<Status()> on_host);
  /// Calls `one` for each fragment (from 0), when the stream has come to it. `how`: for the call log.
  Status run_fragments(std::uint64_t first, std::size_t count, const std::function<Status(std::size_t)>& one,
                       const std::string& how = {});
  /// Waits until the stream has come to the fragment. That may take its time, but not while the caller waits for the
  /// queue. Errors: timeout.
  Status await_stream(std::uint64_t fragment);
  /// Ends the last of `count` fragments, well or not. No caller holds the outcome: a failure is the communicator's.
  Status ended(std::uint64_t first, std::size_t count, const Status& status, const std::string& how = {});

 private:
  std::size_t limit() const;

  CommContext& context_;
  CallLog& log_;
  std::unique_ptr<HostStaging> staging_;
};

}  // namespace tutti
