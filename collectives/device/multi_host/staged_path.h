// Calls on device memory through pinned memory of the host: of a job of several hosts, and messages of ranks that have
// not opened their GPUs' memory to each other. It serves every call, after the other paths.
#pragma once

#include <cstdint>
#include <span>

#include "collectives/device/call_parts.h"
#include "collectives/device/device_path.h"
#include "collectives/device/multi_host/fragment_pipeline.h"
#include "collectives/device/multi_host/host_staged_call.h"

namespace tutti {

class StagedPath final : public DevicePath {
 public:
  StagedPath(const CallParts& parts, FragmentPipeline& pipeline) : parts_(parts), pipeline_(pipeline) {}

  bool wants(const Call& /*call*/) const override { return true; }
  Result<bool> open(int /*device*/, const executor::CallIdentity& /*as*/) override { return true; }
  Status run(std::span<const Call> calls) override;
  /// For a rank that has no buffers, and takes part in the others' fragments.
  Status run_uneven(const Call& data, int device) override;
  bool takes_p2p() override { return true; }
  Status run_p2p(std::span<const Transfer> transfers, int device) override;
  void add_to(MemoryReport& /*report*/) const override {}

 private:
  // By the queue's thread.
  Status run_on_host(const HostStagedCall& call, std::uint64_t first);
  Status run_all_to_allv(const HostStagedCall& call, std::uint64_t first);
  /// Runs the fragments after the exchange of counts. `first`: 0 where this rank has no buffers.
  Status run_uneven_fragments(const HostStagedCall& call, std::uint64_t first);

  const CallParts parts_;
  FragmentPipeline& pipeline_;
};

}  // namespace tutti
