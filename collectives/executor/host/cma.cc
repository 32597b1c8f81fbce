// Steps that touch plain memory of a peer, which no pointer reaches: the kernel copies it (cross-memory attach). A
// piece goes through in chunks that stay in the second-level cache, so that it crosses main memory once.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "collectives/executor/host/plan_walker.h"
#include "collectives/reduce/reduce.h"

namespace tutti::executor {

using plan::StepKind;

namespace {

constexpr std::size_t kMostPerChunk = std::size_t{128} << 10;

}  // namespace

Status PlanWalker::pass_cma(const Prepared& prepared, const PreparedStep& s, const CallBuffers& buffers,
                            std::span<const std::size_t> offsets, std::size_t elements) {
  if (!transport_.capabilities().cross_memory) {
    return health_.fail(Code::unsupported, waiter_.name()(rank_) +
                                               " was given a plan that touches plain memory of a peer, "
                                               "which this machine does not allow");
  }
  const auto reached = [this](int peer, const Status& status) {
    return status.ok() ? status : waiter_.unreachable(peer, status);
  };
  const std::vector<std::byte*>& bases = *bases_;
  const PreparedRange* all = &prepared.ranges[s.sources];
  const std::size_t sources = s.source_count;
  const std::size_t ranges = sources + s.destination_count;
  const std::size_t whole = elements * prepared.element;
  std::size_t unreachable = 0;  // ranges
  for (std::size_t i = 0; i < ranges; ++i) unreachable += bases[all[i].base] == nullptr ? 1 : 0;

  // The commonest step of all: a whole piece from a peer to here, or the other way round. No bounce is needed.
  const bool premultiply = prepared.shape.op == ReduceOp::premul_sum;
  if (s.kind != StepKind::reduce && !premultiply && s.destination_count == 1) {
    const PreparedRange& from = all[0];
    const PreparedRange& to = all[1];
    if (unreachable == 1 && bases[from.base] == nullptr) {
      return reached(from.range.rank, transport_.read(from.range.rank, entry_.handle_of(from.range), offsets[0],
                                                      bases[to.base] + offsets[1], whole));
    }
    if (unreachable == 1) {
      return reached(to.range.rank, transport_.write(to.range.rank, bases[from.base] + offsets[0],
                                                     entry_.handle_of(to.range), offsets[1], whole));
    }
  }

  if (bounce_.empty()) bounce_.resize(kBounceBytes);
  std::byte* bounce = bounce_.data();
  bounce += transport::kCacheLine - reinterpret_cast<std::uintptr_t>(bounce) % transport::kCacheLine;
  const std::size_t per_range = std::min(kMostPerChunk, (kBounceBytes - transport::kCacheLine) / (unreachable + 1)) /
                                transport::kCacheLine * transport::kCacheLine / prepared.element * prepared.element;
  TUTTI_CHECK_LT(std::size_t{0}, per_range);

  std::vector<const void*> from(sources);
  std::vector<void*> to;
  std::vector<double> factors;
  if (premultiply) {
    for (std::size_t i = 0; i < sources; ++i) factors.push_back(factor_of(all[i], buffers));
  }
  for (std::size_t done = 0; done < whole;) {
    const std::size_t bytes = std::min(per_range, whole - done);
    std::size_t used = 0;
    for (std::size_t i = 0; i < sources; ++i) {
      std::byte* base = bases[all[i].base];
      if (base != nullptr) {
        from[i] = base + offsets[i] + done;
        continue;
      }
      std::byte* here = bounce + used++ * per_range;
      const int peer = all[i].range.rank;
      TUTTI_TRY(reached(peer, transport_.read(peer, entry_.handle_of(all[i].range), offsets[i] + done, here, bytes)));
      from[i] = here;
    }
    // What goes to plain memory of peers is made once, in cache, and sent from there.
    to.clear();
    std::byte* outgoing = nullptr;
    for (std::size_t i = sources; i < ranges; ++i) {
      std::byte* base = bases[all[i].base];
      if (base != nullptr) to.push_back(base + offsets[i] + done);
    }
    if (to.size() < s.destination_count) {
      outgoing = to.empty() ? bounce + used * per_range : static_cast<std::byte*>(to.front());
      if (to.empty()) to.push_back(outgoing);
    }
    const reduce::Spec spec{.type = prepared.shape.type,
                            .op = s.kind == StepKind::reduce || premultiply ? prepared.shape.op : ReduceOp::sum,
                            .divide_by = s.last && prepared.shape.op == ReduceOp::avg ? prepared.ranks : 0.0,
                            .factors = premultiply ? factors.data() : nullptr};
    if (s.kind == StepKind::reduce || premultiply) {
      reduce::reduce(spec, to, from, bytes / prepared.element, false);
    } else {
      reduce::copy(to, from[0], bytes, false);
    }
    for (std::size_t i = sources; i < ranges && outgoing != nullptr; ++i) {
      if (bases[all[i].base] != nullptr) continue;
      const int peer = all[i].range.rank;
      TUTTI_TRY(
          reached(peer, transport_.write(peer, outgoing, entry_.handle_of(all[i].range), offsets[i] + done, bytes)));
    }
    done += bytes;
  }
  return {};
}

}  // namespace tutti::executor
