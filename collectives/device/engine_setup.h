// The exchange in which the ranks of a communicator learn of each other's GPUs: which ranks share one, how many blocks
// each may have, in which form calls run, and each other's windows. Needs the CUDA toolkit's headers.
// Errors: unsupported, when a rank cannot work on device memory, on all ranks; memory_limit, when the windows do not
//   fit.
// Threads: one at a time.
// Limits: kMostDeviceRanks (64) ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "collectives/device/kernel_engine.h"
#include "collectives/executor/cuda/executor.h"
#include "transport/cuda_ipc/cuda_ipc.h"

namespace tutti {

/// A rank's facts that its peers need before memory is shared.
struct DevicePeerInfo {
  std::uint64_t well = 0;
  std::uint64_t process = 0;
  std::uint64_t gpu[2] = {};
  std::uint64_t region_log = 0;
  std::uint64_t pid = 0;
  std::uint64_t side_by_side = 0;  // kernels of other processes run beside its own on its GPU
  std::uint64_t room = 0;          // bytes of its GPU's memory that the communicator may take
};

class EngineSetup {
 public:
  explicit EngineSetup(KernelEngine::Config config) : config_(std::move(config)) {}
  /// Lets go of the windows. REQUIRES: no kernel uses them.
  ~EngineSetup();
  /// The communicator is no more: what config() names is asked no longer.
  void detach();
  EngineSetup(const EngineSetup&) = delete;
  EngineSetup& operator=(const EngineSetup&) = delete;

  /// A collective call of all ranks.
  Status run();
  /// Returns ok if all ranks are well. `least`: becomes the smallest of all ranks' values, unless null. Collective.
  Status agree(const Status& mine, int* least);

  const KernelEngine::Config& config() const { return config_; }
  executor::cuda::Form form() const { return form_; }
  bool segmented() const { return form_ == executor::cuda::Form::segmented; }
  bool shares_gpu() const { return shares_gpu_; }  // with other ranks of this process
  bool all_open() const { return all_open_; }      // every pointer is good for every rank
  int blocks() const { return blocks_; }           // the most that a call may have
  const transport::DeviceWindowSizes& sizes() const { return sizes_; }
  std::size_t pool_bytes() const { return pool_bytes_; }  // for programs
  std::size_t memory() const;                             // of this rank's GPU, in bytes
  transport::CudaIpc& links() { return *links_; }
  /// A number of this communicator's own in this process, the same for all of its ranks.
  std::uint64_t number() const { return number_; }

 private:
  class Liveness;
  using Greeting = DevicePeerInfo;
  Status probe_device();
  Result<std::vector<Greeting>> exchange_peer_info(const Status& mine);
  Status refused(int rank) const;
  Status plan_blocks(const std::vector<Greeting>& all);
  Status plan_memory(const std::vector<Greeting>& all);
  transport::CudaIpc::Config links_config(const std::vector<Greeting>& all);

  KernelEngine::Config config_;
  std::shared_ptr<const executor::cuda::Kernels> kernels_;  // once for all that asks about them, and the executor
  Greeting greeting_;
  std::shared_ptr<std::byte> region_log_;
  executor::cuda::Form form_ = executor::cuda::Form::waiting;
  bool shares_gpu_ = false;
  bool all_open_ = true;
  int blocks_ = 1;
  std::uint64_t number_ = 0;
  executor::cuda::BlockBudget budget_;
  transport::DeviceWindowSizes sizes_;
  std::size_t pool_bytes_ = 0;
  std::shared_ptr<Liveness> living_;
  std::unique_ptr<transport::CudaIpc> links_;
};

}  // namespace tutti
