// Ranks with device windows in host memory, and their kernels as host threads: what the device executor's logic is
// tested with where there is neither GPU nor driver.
//
//   DeviceJob job(3, sizes);
//   job.run([&](DeviceRank& rank) {                 // on a thread of its own for each rank
//     rank.call(program_of(rank.index()), {.input = ..., .output = ...});   // a kernel, from launch to end
//   });
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "collectives/executor/cuda/launch.h"
#include "collectives/executor/cuda/p2p.h"
#include "collectives/executor/cuda/program.h"
#include "tests/support/block_team.h"
#include "tests/support/host_block.h"
#include "transport/device_window.h"

namespace tutti::testing {

/// Zeroed, aligned as device memory is.
class AlignedBytes {
 public:
  explicit AlignedBytes(std::size_t bytes = 0);
  std::byte* data() { return data_.get(); }
  std::size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete (p, std::align_val_t{256}); }
  };
  std::unique_ptr<std::byte, Free> data_;
  std::size_t size_;
};

class DeviceJob;

struct DeviceCallArguments {
  const void* input = nullptr;
  void* output = nullptr;
  double factor = 1.0;
  std::uint64_t fingerprint = 1;
  std::uint64_t what = 0;
  std::uint64_t count = 0;
  std::uint64_t flags = 0;
  const std::vector<std::byte>* if_plain = nullptr;
  const std::vector<std::byte>* if_in_place = nullptr;
};

class DeviceRank {
 public:
  int index() const { return index_; }
  /// Returns the arguments that a launch would pass. The programs must outlive their use.
  executor::cuda::LaunchArguments arguments(const std::vector<std::byte>& program,
                                            const DeviceCallArguments& call) const;
  /// Launches and waits for all blocks. Returns false when the kernel has given up.
  bool call(const std::vector<std::byte>& program, const DeviceCallArguments& call);
  /// Runs several calls by one kernel, that of the first call.
  bool call_together(const std::vector<std::pair<const std::vector<std::byte>*, DeviceCallArguments>>& calls);
  /// Runs a call by kernels that do not wait (segments.h): this thread waits between them, as a stream would. All later
  /// calls of the rank must do so, too.
  bool call_segmented(const std::vector<std::byte>& program, const DeviceCallArguments& call);
  /// Launches with arguments that were made before, as a replayed graph does.
  bool launch(int kernel, int blocks, const executor::cuda::LaunchArguments& arguments);
  /// Carries a list of messages (p2p.h) by `blocks` blocks; returns true when all have come.
  bool run_p2p(const std::vector<std::byte>& p2p, int blocks);
  transport::DeviceHostWords& host();
  transport::DeviceState& state();

 private:
  friend class DeviceJob;
  bool run_blocks(int blocks, const std::function<void(const executor::cuda::HostPlace&)>& body);
  DeviceJob* job_ = nullptr;
  int index_ = 0;
  std::unique_ptr<BlockTeam> team_ = std::make_unique<BlockTeam>();
  std::uint64_t calls_ = 0;                            // in pieces
  std::map<std::pair<int, int>, std::uint64_t> seen_;  // in pieces: signals, by peer and channel
};

class DeviceJob {
 public:
  DeviceJob(int ranks, const transport::DeviceWindowSizes& sizes);

  void run(const std::function<void(DeviceRank&)>& body);
  DeviceRank& rank(int index) { return ranks_[static_cast<std::size_t>(index)]; }
  const transport::DeviceWindowSizes& sizes() const { return sizes_; }
  std::byte* window(int rank) { return windows_[static_cast<std::size_t>(rank)].data(); }

  /// Delays at accesses to shared words, from this seed; 0: none.
  void disturb(unsigned seed) { disturbance_ = seed; }
  /// A clock that stands still until a test moves it.
  void use_fake_clock() { fake_clock_ = true; }
  void advance_clock(std::uint64_t ns) { clock_.fetch_add(ns); }

 private:
  friend class DeviceRank;
  const transport::DeviceWindowSizes sizes_;
  std::vector<AlignedBytes> windows_;
  std::vector<transport::DevicePeer> peers_;
  std::vector<std::unique_ptr<transport::DeviceHostWords>> host_;
  std::vector<DeviceRank> ranks_;
  unsigned disturbance_ = 0;
  bool fake_clock_ = false;
  std::atomic<std::uint64_t> clock_{1};
};

/// How many blocks a program is launched with, and the kernel that carries it out.
int blocks_of(const std::vector<std::byte>& program);
int kernel_of(const std::vector<std::byte>& program);

}  // namespace tutti::testing
