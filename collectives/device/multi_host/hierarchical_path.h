// Calls on device memory where all hosts have as many ranks each, and those of a host reach each other by kernels:
// kernels inside each host, and only the host's share over the network (hierarchical_call.h).
//
//   stream   k 0, in 0 | k 1, in 1 | k 2, in 2 | k 3, in 3 | until 0 is done, out 0, k 0' | k 4, in 4 | until 1 is ...
//   proxy              | fragment 0 | fragment 1 | fragment 2 ...
//
// k: the kernels before a fragment, k': those after it. All ranks of a host put them into their streams in this order,
// so none waits for one that stands behind what it waits for itself.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/status.h"
#include "collectives/device/call_parts.h"
#include "collectives/device/device_path.h"
#include "collectives/device/kernel_engine.h"
#include "collectives/device/multi_host/fragment_pipeline.h"
#include "collectives/device/multi_host/gdr_path.h"
#include "collectives/device/multi_host/hierarchical_call.h"
#include "collectives/device/multi_host/host_layout.h"

namespace tutti {

class HierarchicalPath final : public DevicePath {
 public:
  HierarchicalPath(const CallParts& parts, FragmentPipeline& pipeline, GdrPath& gdr)
      : parts_(parts), pipeline_(pipeline), gdr_(gdr) {}

  bool wants(const Call& call) const override;
  Result<bool> open(int device, const executor::CallIdentity& as) override;
  Status run(std::span<const Call> calls) override;
  int device() const override { return engine_ ? engine_->device() : -1; }
  std::string refusal() const override { return refusal_.empty() ? refusal_ : "no kernels inside hosts: " + refusal_; }
  void add_to(MemoryReport& report) const override;
  std::uint64_t calls() const override { return engine_ ? engine_->calls() : 0; }
  void set_timeout(std::chrono::nanoseconds timeout) override;

 private:
  /// Makes the kernels' half among this host's ranks. `gathers`: counts the collective calls for it.
  Result<std::unique_ptr<KernelEngine>> make_engine(int device, const executor::CallIdentity& as, int& gathers);
  /// Makes the plans among the ranks at this one's place on all hosts.
  Result<std::unique_ptr<CallPreparer>> make_cross_host_preparer() const;
  /// Puts kernels of this host's ranks into the stream.
  Status launch(std::span<const HierarchicalCall::IntraHostCall> calls, const executor::CallIdentity& as);

  const CallParts parts_;
  FragmentPipeline& pipeline_;
  GdrPath& gdr_;
  std::string refusal_;  // empty: not refused
  std::optional<HostLayout> layout_;
  std::unique_ptr<KernelEngine> engine_;      // null: not open
  std::unique_ptr<CallPreparer> cross_host_;  // null: not open
};

}  // namespace tutti
