// Tutti's own communicator. It validates a call, chooses the path that serves it, and runs it there.
//
//   host memory     HostPath: the planner's plan, walked by the host's executor
//   device memory   DevicePaths: kernels; between hosts kernels and NICs, NICs, or pinned memory of the host
//   messages        P2pQueue, or DevicePaths
//
// Each part has its own state. What goes wrong in one becomes the one failure that every rank reports (CommContext).
//
// Threads: as tutti::Communicator.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "collectives/calls/comm_context.h"
#include "collectives/calls/control_gather.h"
#include "collectives/calls/count_exchange.h"
#include "collectives/calls/host_path.h"
#include "collectives/calls/p2p_queue.h"
#include "collectives/communicator/children.h"
#include "collectives/communicator_interface.h"
#include "collectives/device/device_paths.h"
#include "collectives/diagnostics/call_log.h"

namespace tutti {

class TuttiCommunicator final : public CommunicatorInterface {
 public:
  /// A collective call of `world_ranks`, which are listed by rank. `comm_id`: the same number on all ranks, and no
  /// other communicator's. `exchange`: an all_gather among these ranks. Errors: memory_limit; as JobContext::connect().
  static Result<std::shared_ptr<TuttiCommunicator>> create(std::shared_ptr<JobContext> job,
                                                           std::vector<int> world_ranks, int rank,
                                                           std::uint64_t comm_id, const Options& options,
                                                           const Exchange& exchange);
  ~TuttiCommunicator() override;

  int rank() const override { return context_.rank; }
  int size() const override { return context_.size(); }

  Status run(const Call& call) override;
  Status run_group(std::span<const Transfer> transfers) override;
  Status run_together(std::span<const Call> calls) override;
  Result<std::shared_ptr<PendingWork>> start(const Call& call) override;
  Result<std::shared_ptr<PendingWork>> start_group(std::span<const Transfer> transfers) override;

  Result<std::shared_ptr<CommunicatorInterface>> split(int color, int key, const std::string& name) override {
    return children_.split(color, key, name);
  }
  Result<std::shared_ptr<CommunicatorInterface>> shrink() override { return children_.shrink(); }
  Status open_device(int device) override;
  Status set_timeout(std::chrono::milliseconds timeout) override;
  void abort(const std::string& reason) override;
  Status status() const override { return context_.health.status(); }

  Explanation explain_last_call() const override;
  MemoryReport memory() const override;
  Traffic traffic() const override;
  std::string flight_recorder_text() const override { return context_.recorder->text(); }
  std::string flight_recorder_json() const override { return context_.recorder->json(); }

  // For measuring and planning.
  const JobContext& job() const { return *context_.job; }
  const planner::Planner& planner() const { return host_.planner(); }

 private:
  TuttiCommunicator(std::shared_ptr<JobContext> job, std::vector<int> world_ranks, int rank, std::uint64_t comm_id,
                    const Options& options, std::unique_ptr<transport::Transport> transport,
                    std::unique_ptr<planner::Planner> planner);

  /// Returns whether the call is between hosts and has buffers on a GPU: then the queue runs its fragments.
  bool goes_by_fragments(const Call& call) const;
  /// Runs a call on this thread, which runs calls.
  Status execute(const Call& call);
  Status execute_all_to_allv(const Call& call, int device);
  /// Checks a group. Returns the GPU of its buffers, or -1.
  Result<int> checked_device_of(std::span<const Transfer> transfers) const;

  mutable CommContext context_;  // mutable: reports wait for the queue
  CallLog log_;
  HostPath host_;
  ControlGather gather_;
  CountExchange counts_;
  P2pQueue p2p_;
  DevicePaths devices_;
  Children children_;
};

}  // namespace tutti
