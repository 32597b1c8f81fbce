// Calls on device memory of ranks on one host: kernels move the data.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>

#include "collectives/device/call_parts.h"
#include "collectives/device/device_path.h"
#include "collectives/device/kernel_engine.h"

namespace tutti {

/// Fails where there is no other path: some kinds of error are found before anything is in a stream; after others,
/// ranks wait for this one.
Status checked_launch(CommContext& context, const Status& status);

class KernelPath final : public DevicePath {
 public:
  explicit KernelPath(const CallParts& parts) : parts_(parts) {}

  bool wants(const Call& call) const override;
  Result<bool> open(int device, const executor::CallIdentity& as) override;
  Status run(std::span<const Call> calls) override { return launch(calls, nullptr); }
  bool together() const override { return true; }
  Status run_uneven(const Call& data, int device) override;
  /// A message that a rank has sent through the host must not be awaited from a kernel behind it. So messages go this
  /// way only where no rank has sent any before the kernels' half was made.
  bool takes_p2p() override;
  Status run_p2p(std::span<const Transfer> transfers, int device) override;

  int device() const override { return engine_ ? engine_->device() : -1; }
  void add_to(MemoryReport& report) const override;
  std::uint64_t calls() const override { return engine_ ? engine_->calls() : 0; }
  void set_timeout(std::chrono::nanoseconds timeout) override;

 private:
  Status launch(std::span<const Call> calls, const executor::UnevenPieces* uneven);
  KernelEngine::Request request_of(const Call& call) const;
  void report(std::span<const Call> calls) const;

  const CallParts parts_;
  std::unique_ptr<KernelEngine> engine_;
  bool staged_messages_ = false;  // some rank has sent or received on device memory before that was made
};

}  // namespace tutti
