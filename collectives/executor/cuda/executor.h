// Puts calls of one rank into CUDA streams: programs into the GPU's memory, kernels into the stream, and the words by
// which kernels and host exchange their state. It knows programs, windows and streams; no algorithm and no transport.
//
//   TUTTI_ASSIGN(auto executor, DeviceExecutor::create(place));
//   TUTTI_ASSIGN(auto program, executor->upload(flatten(*prepared)));
//   const DeviceExecutor::Launch call = {.first = program, ...};
//   TUTTI_TRY(executor->launch({&call, 1}, stream));                    // returns when it is in the stream
//
// Two forms, the same on all ranks of a communicator:
//   waiting    one kernel for a call, or for several of a group; it waits inside for its peers' kernels, which must be
//              able to run at the same time: BlockBudget sees to that. Can be captured into a graph and replayed
//   segmented  several kernels, none of which waits; between them the stream does (segments.h). For processes that
//              share a GPU. Cannot be captured: what a stream waits for changes with every call
//
// Order: calls of a communicator run in the order of their launches, on whatever streams. Replays of a graph and other
// calls are ordered by the caller.
//
// Threads: launch() and upload() one at a time; the rest from any. Needs the CUDA toolkit's headers (TUTTI_HAS_CUDA).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "collectives/executor/cuda/launch.h"
#include "collectives/executor/cuda/p2p.h"
#include "collectives/executor/cuda/segments.h"
#include "device/driver.h"

namespace tutti::executor::cuda {

enum class Form { waiting, segmented };

/// The kernels, loaded into the process; shared by all executors that are alive.
class Kernels;

/// The number of blocks of kernels that wait for each other that may be on a GPU at a time, over all communicators of
/// this process. It is never more than the GPU holds, or this process's share if kernels of others run beside them. Of
/// what is free, a communicator gets three quarters, so that others find room later.
class BlockBudget {
 public:
  BlockBudget() = default;
  BlockBudget(BlockBudget&& other) noexcept { *this = std::move(other); }
  BlockBudget& operator=(BlockBudget&& other) noexcept;
  ~BlockBudget() { release(); }

  /// Reserves blocks for `ranks` ranks of this process. `processes`: those that share `device`, this one included.
  /// Errors: of the driver; unsupported when nothing is left for one block each.
  static Result<BlockBudget> reserve(int device, int ranks, int processes = 1);
  int blocks_of_each() const { return of_each_; }
  /// Gives back what is more than this many for each.
  void keep(int blocks_of_each);
  /// How many blocks of any kernel the device holds. Asks the driver.
  static Result<int> capacity(int device);

 private:
  void release();
  std::string gpu_;  // which
  int ranks_ = 0;
  int of_each_ = 0;
};

/// Device memory for programs, allocated before any kernel runs, since an allocation may have to wait for kernels that
/// run. Thread-safe.
class ProgramPool {
 public:
  static Result<std::shared_ptr<ProgramPool>> create(int device, std::size_t bytes);
  ~ProgramPool();
  /// 0: it is full.
  CUdeviceptr take(std::size_t bytes);
  void give_back(CUdeviceptr address);

 private:
  ProgramPool(int device, CUdeviceptr base, std::size_t bytes) : device_(device), base_(base), bytes_(bytes) {}
  const int device_;
  const CUdeviceptr base_;
  const std::size_t bytes_;
  std::mutex mutex_;
  std::map<CUdeviceptr, std::size_t> taken_;  // guarded by mutex_
};

/// A program, or a list of messages, in the memory of a GPU. Destroyed when no kernel that has it can still run.
class DeviceProgram {
 public:
  DeviceProgram(std::shared_ptr<ProgramPool> pool, CUdeviceptr address, std::vector<std::byte> copy)
      : pool_(std::move(pool)), address_(address), copy_(std::move(copy)) {}
  ~DeviceProgram() { pool_->give_back(address_); }
  DeviceProgram(const DeviceProgram&) = delete;
  DeviceProgram& operator=(const DeviceProgram&) = delete;

  const Program& head() const { return *reinterpret_cast<const Program*>(copy_.data()); }
  const P2pList& p2p() const { return *reinterpret_cast<const P2pList*>(copy_.data()); }  // of a list of messages
  CUdeviceptr address() const { return address_; }
  int blocks() const { return head().lanes * head().strips; }
  int kernel() const;
  std::size_t bytes() const { return copy_.size(); }
  /// Returns segments_of() the program, made at the first use. One thread at a time.
  const std::vector<SegmentLaunch>& segments() const;

 private:
  const std::shared_ptr<ProgramPool> pool_;
  const CUdeviceptr address_;
  const std::vector<std::byte> copy_;
  mutable std::vector<SegmentLaunch> segments_;  // none: not made yet
};

class DeviceExecutor {
 public:
  static constexpr std::size_t kPoolBytes = std::size_t{8} << 20;
  struct Place {
    int device = 0;
    int rank = 0;
    std::string name;  // of the rank, in errors
    Form form = Form::waiting;
    transport::DeviceWindowSizes sizes;
    std::size_t pool_bytes = kPoolBytes;  // for programs
    std::uint64_t peers = 0;              // DevicePeer[ranks], in the GPU's memory
    std::uint64_t window = 0;             // this rank's
  };
  static Result<std::unique_ptr<DeviceExecutor>> create(const Place& place);
  /// REQUIRES: idle(), and graphs that hold its calls are launched no more.
  ~DeviceExecutor();
  DeviceExecutor(const DeviceExecutor&) = delete;
  DeviceExecutor& operator=(const DeviceExecutor&) = delete;

  /// Errors: memory_limit when all of the pool is taken.
  Result<std::shared_ptr<const DeviceProgram>> upload(std::vector<std::byte> program);

  struct Launch {
    std::shared_ptr<const DeviceProgram> first;
    std::shared_ptr<const DeviceProgram> if_plain;     // or null
    std::shared_ptr<const DeviceProgram> if_in_place;  // or null
    const void* input = nullptr;
    void* output = nullptr;
    std::uint64_t fingerprint = 0;
    transport::DeviceCall announcement;  // handles, factor, what, count, flags

    int blocks() const;  // that it wants
    int kernel() const;  // that carries it out; what only moves, any kernel does
  };
  /// The calls one after another, in as few kernels as can be (not in the form `segmented`): up to kMostCalls in a row
  /// that have one kernel in common. How a rank's calls are put together is its own affair. REQUIRES: one or more.
  /// Errors: unsupported (a capture, in the form `segmented`), and what the driver says.
  Status launch(std::span<const Launch> calls, CUstream stream);

  /// Puts a list of messages into the stream.
  Status launch_p2p(const std::shared_ptr<const DeviceProgram>& program, CUstream stream);

  /// Ends all waits, now and later. Any thread; again and again until idle(), in the form `segmented`.
  void abort();
  void set_limit(std::int64_t ns);
  /// Returns the failure of a kernel; kind 0: none.
  transport::DeviceVerdict verdict() const;
  struct Progress {
    std::uint64_t launched = 0;  // calls; a replayed graph's are not among them
    std::uint64_t entered = 0;
    std::uint64_t finished = 0;
    std::uint64_t p2p = 0;  // in the form `segmented`: odd while a group of messages is under way
    bool captured = false;  // graphs hold calls, so there may be more than were launched
  };
  Progress progress() const;
  /// Nothing that was launched (and not captured) is still to run. Any thread.
  bool idle() const;
  /// The ranks that have not announced `call` to this one, a bit each, as the memory says just now; for the words of a
  /// failure, in the form `segmented`.
  std::uint64_t absent_in(std::uint64_t call);
  const Place& place() const { return place_; }

 private:
  explicit DeviceExecutor(const Place& place) : place_(place) {}
  Status prepare();
  Status follow(CUstream stream, bool captured, std::uint64_t capture);
  Status launch_kernel(const void* arguments, int kernel, int blocks, CUstream stream);
  Status put(std::span<const Launch> calls, bool captured, CUstream stream);
  /// The first calls of these by one kernel; how many it is.
  Result<std::size_t> launch_together(std::span<const Launch> calls, CUstream stream);
  Status launch_segmented(const Launch& launch, CUstream stream);
  Status launch_p2p_segmented(P2pArguments arguments, const P2pList& list, CUstream stream);
  Status wait_for(std::uint64_t offset, std::uint64_t value, CUstream stream);
  /// Begin and end both kinds of launches. `put`: the outcome of putting the launch into the stream; what was put there
  /// before a failure runs all the same.
  Result<bool> begin_launch(CUstream stream);
  Status end_launch(const Status& put, bool captured, CUstream stream);
  void keep(const std::shared_ptr<const DeviceProgram>& program);
  LaunchArguments arguments_of(std::span<const Launch> calls) const;

  struct P2pCount {
    std::uint64_t sent = 0;
    std::uint64_t seen = 0;
  };

  const Place place_;
  const device::Driver* cuda_ = nullptr;
  std::shared_ptr<const Kernels> kernels_;
  std::shared_ptr<ProgramPool> pool_;
  transport::DeviceHostWords* words_ = nullptr;  // pinned
  CUstream stream_ = nullptr;                    // of this object: uploads, and what abort() writes
  CUevent done_ = nullptr;                       // of the last call that was launched
  CUevent captured_ = nullptr;                   // the same within a capture
  CUstream last_stream_ = nullptr;
  CUstream last_captured_stream_ = nullptr;
  std::uint64_t last_capture_ = 0;
  bool launched_any_ = false;
  std::uint64_t launched_ = 0;
  std::uint64_t groups_ = 0;   // of messages
  std::vector<P2pCount> p2p_;  // form segmented: by peer and strip
  // Form segmented: by peer and channel, the signals that streams have been made to wait for.
  std::vector<std::uint64_t> seen_;
  std::vector<std::shared_ptr<const DeviceProgram>> kept_;  // programs that graphs hold
  mutable std::mutex mutex_;                                // of what abort() and idle() use
};

}  // namespace tutti::executor::cuda
