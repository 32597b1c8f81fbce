// The half of a communicator that works on device memory: windows in the GPUs' memory, programs, kernels in streams,
// and a thread that watches the kernels for failures. Made at a communicator's first call on device memory, by all
// ranks together.
//
// Threads: run() one at a time, by the thread that runs the communicator's calls; the rest from any.
// Errors of create() leave the communicator as it is: its calls on host memory go on working.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "collectives/call.h"
#include "collectives/executor/record.h"
#include "collectives/executor/uneven.h"
#include "collectives/executor/wait/health.h"
#include "transport/exchange.h"
#include "transport/transport.h"
#include "tutti/tutti.hpp"

namespace tutti {

class KernelEngine {
 public:
  static constexpr int kGathers = 6;
  static constexpr int kMostBlocks = 64;          // of a kernel
  static constexpr std::size_t kGatherWords = 8;  // at most, each time

  struct Config {
    int rank = 0;
    int size = 1;
    int device = -1;  // ordinal of this rank's GPU; -1: the calling thread's
    transport::Transport* host = nullptr;
    std::vector<int> in_host;  // the number there of each rank; empty: the same
    executor::Health* health = nullptr;
    std::function<std::string(int)> name;  // "rank 2 (host alpha, pid 4711)"
    transport::Exchange gather;
    std::vector<int> hosts;    // by rank, as the planner wants them
    int processes_of_gpu = 1;  // of the job, at most: those of this host
    Options options;
    bool waiting_only = false;  // where kernels cannot wait for each other: unsupported

    int host_rank(int r) const { return in_host.empty() ? r : in_host[static_cast<std::size_t>(r)]; }
  };
  /// A collective call of all ranks, which gathers kGathers times, or fewer when one of them fails. Errors: unsupported
  /// (no CUDA in this build, no driver, no kernels), memory_limit.
  static Result<std::unique_ptr<KernelEngine>> create(Config config);
  virtual ~KernelEngine() = default;
  /// Frees windows that ended communicators have left and no peer uses.
  static void sweep();

  /// A call, without its order in the communicator.
  struct Request {
    const Call* call = nullptr;
    executor::CallIdentity identity;
    bool deterministic = false;
    std::string_view algorithm;  // the call's own choice, or else
    std::string_view preferred;  // the communicator's: it holds where it can
    bool in_place = false;
    const executor::UnevenPieces* uneven = nullptr;  // of an all_to_allv; the call's count is its largest piece
    std::size_t stride = 0;                          // as executor::Shape::stride
  };
  /// Calls on one stream, one after another, in as few launches as can be. Returns when they are in the stream.
  /// REQUIRES: one or more; an all_to_allv comes alone. Errors: invalid_argument, unsupported and memory_limit leave
  /// the communicator as it is, and nothing is in the stream.
  virtual Status run(std::span<const Request> requests) = 0;

  /// A group of sends and receives, all on device memory: messages of a pair in their order, without tags. As run().
  virtual Status run_group(std::span<const Transfer> transfers) = 0;

  virtual int device() const = 0;
  /// Returns one explanation for each call of the last run().
  virtual std::span<const Explanation> explanations() const = 0;
  virtual std::size_t memory() const = 0;  // device memory that this rank takes, in bytes
  virtual void set_timeout(std::chrono::nanoseconds timeout) = 0;
  /// Calls that have been put into streams.
  virtual std::uint64_t calls() const = 0;
};

}  // namespace tutti
