// Calls on device memory that NICs carry from GPU to GPU (GPUDirect RDMA). They are fragments, as where the data goes
// through pinned memory (staged_path.h), but the slots lie in the GPU's memory, which the wire exposes:
//
//   stream   in 0, mark | in 1, mark | in 2, mark | in 3, mark | until 0 is done, out 0 | in 4, mark | until 1 is ...
//   proxy               | fragment 0: when a peer has entered it, its block goes from this rank's slot into the peer's
//   ...
//
// How: a rank enters a fragment when its stream has come to it. By then it has taken out what the fragment four before
//   it has left in the slot. So a peer that has entered has its slot free, and what was put to it comes before the
//   signal behind.
// Errors: where a rank cannot expose its slots, open() returns false on all ranks, and refusal() says why.
// Threads: run_fragment() by the queue's; the rest by the caller's.
// Limits: calls in which nothing is added, of 64 KiB or more, among ranks on hosts of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "collectives/device/call_parts.h"
#include "collectives/device/device_path.h"
#include "collectives/device/multi_host/fragment_pipeline.h"
#include "transport/wire/wire.h"

namespace tutti {

class GdrPath final : public DevicePath {
 public:
  GdrPath(const CallParts& parts, FragmentPipeline& pipeline) : parts_(parts), pipeline_(pipeline) {}
  ~GdrPath() override { close(); }

  bool wants(const Call& call) const override;
  Result<bool> open(int device, const executor::CallIdentity& as) override;
  Status run(std::span<const Call> calls) override;
  std::string refusal() const override { return refusal_.empty() ? refusal_ : "no GPUDirect: " + refusal_; }
  void add_to(MemoryReport& /*report*/) const override {}

  // For the fragments of another path.
  /// Whether the path serves such a call among `ranks` ranks, each on a host of its own.
  bool wants_among(const Call& call, int ranks) const;
  /// From now on the path cannot be opened, since memory_limit has no room left for it.
  void forbid() { forbidden_ = true; }
  /// Returns the number of the first of `count` fragments.
  std::uint64_t reserve(std::size_t count);
  std::byte* input(std::uint64_t number) const { return base_ + pipeline_.staging().gdr_input(number); }
  std::byte* output(std::uint64_t number) const { return base_ + pipeline_.staging().gdr_output(number); }
  /// Runs a fragment, by the queue's thread. `ranks`: those that take part, by their number in `fragment`; `number`: as
  /// reserved.
  Status run_fragment(const executor::CallIdentity& as, const Call& fragment, std::span<const int> ranks,
                      std::uint64_t number);

 private:
  /// Makes and exposes the slots. Returns the key for the other ranks.
  Result<std::string> expose();
  Status attach(const Words& keys, std::size_t width);
  void close();

  const CallParts parts_;
  FragmentPipeline& pipeline_;
  bool open_ = false;
  bool forbidden_ = false;
  std::string refusal_;        // empty: not refused
  std::byte* base_ = nullptr;  // of the slots; null: not exposed
  std::size_t bytes_ = 0;
  std::vector<transport::Region> regions_;  // by rank; 0: it is on this host
  std::uint64_t fragments_ = 0;             // that there have been
};

}  // namespace tutti
