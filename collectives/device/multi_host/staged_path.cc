#include "collectives/device/multi_host/staged_path.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "collectives/calls/call_identity.h"
#include "transport/transport.h"

namespace tutti {

using executor::PeerCounts;

Status StagedPath::run(std::span<const Call> calls) {
  const Call& call = calls.front();
  HostStaging& staging = pipeline_.staging();
  TUTTI_ASSIGN(const std::size_t bytes, pipeline_.slot_bytes());
  const auto staged = std::make_shared<const HostStagedCall>(call, parts_.context.rank, parts_.context.size(), bytes);
  if (call.count == 0 && !staged->uneven()) {
    return pipeline_.enqueue(0, {}, call.stream, [this, staged] { return parts_.host.run_empty(staged->whole()); });
  }
  const std::uint64_t first = staging.begin(staged->fragments());
  std::vector<HostStaging::Fragment> fragments;
  for (std::uint64_t i = 0; i < staged->fragments(); ++i) {
    fragments.push_back(staged->copies(i, staging.input(first + i), staging.output(first + i)));
  }
  return pipeline_.enqueue(first, fragments, call.stream,
                           [this, staged, first] { return run_on_host(*staged, first); });
}

Status StagedPath::run_on_host(const HostStagedCall& call, std::uint64_t first) {
  if (call.uneven()) return pipeline_.ended(first, call.fragments(), run_all_to_allv(call, first));
  const std::size_t part = call.fragments() > 1 ? call.part() : 0;
  const executor::CallIdentity identity = identity_on_device(call.whole(), parts_.context.options, part);
  return pipeline_.run_fragments(first, call.fragments(), [&](std::size_t fragment) {
    HostStaging& staging = pipeline_.staging();
    const std::uint64_t number = first + fragment;
    return parts_.host.run_as(identity, call.call(fragment, staging.input(number), staging.output(number)));
  });
}

Status StagedPath::run_all_to_allv(const HostStagedCall& call, std::uint64_t first) {
  TUTTI_TRY(pipeline_.await_stream(first));
  TUTTI_TRY(parts_.counts.run(call.whole(), PeerCounts::kOnDevice));
  return run_uneven_fragments(call, first);
}

Status StagedPath::run_uneven(const Call& data, int /*device*/) {
  TUTTI_ASSIGN(const std::size_t bytes, pipeline_.slot_bytes());
  return run_uneven_fragments(HostStagedCall(data, parts_.context.rank, parts_.context.size(), bytes), 0);
}

Status StagedPath::run_uneven_fragments(const HostStagedCall& staged, std::uint64_t first) {
  if (parts_.counts.any_in(PeerCounts::kOnHost)) return parts_.counts.mixed_memories();
  const std::size_t largest = parts_.counts.largest_piece();
  const auto own = first == 0 ? 0 : staged.fragments();
  for (std::size_t fragment = 0; largest > 0 && fragment < staged.fragments_for(largest); ++fragment) {
    const std::uint64_t number = first + fragment;
    if (fragment < own) TUTTI_TRY(pipeline_.await_stream(number));
    TUTTI_TRY(parts_.host.bound_run_ahead());
    const HostStagedCall::Pieces pieces = staged.pieces(fragment, parts_.counts.peers());
    Call data = staged.whole();
    data.send = fragment < own ? pipeline_.staging().input(number) : nullptr;
    data.recv = fragment < own ? pipeline_.staging().output(number) : nullptr;
    data.count = executor::rounded_piece(std::min(largest, staged.part()));
    TUTTI_ASSIGN(const PreparedCall* const prepared, parts_.host.prepared(data));
    const executor::UnevenPieces uneven{.rank = parts_.context.rank,
                                        .send_counts = pieces.send_counts,
                                        .send_offsets = pieces.offsets,
                                        .recv_counts = pieces.recv_counts,
                                        .recv_offsets = pieces.offsets,
                                        .peer_counts = pieces.told};
    TUTTI_TRY(parts_.host.run(*prepared, data, prepared->announcement, &uneven));
    if (fragment < own) pipeline_.staging().end(number);
  }
  return {};
}

Status StagedPath::run_p2p(std::span<const Transfer> transfers, int device) {
  CommContext& context = parts_.context;
  if (context.health.failed()) return context.health.status();
  TUTTI_TRY(pipeline_.open(device));
  HostStaging& staging = pipeline_.staging();
  const Stream stream = transfers.front().stream;
  TUTTI_TRY(staging.check(stream));
  std::size_t bytes = 0;
  for (const Transfer& t : transfers) bytes += round_up(t.count * size_of(t.type), transport::kCacheLine);
  const Result<std::byte*> block = staging.block(bytes);
  if (!block.ok()) {
    return Status(block.status().code(),
                  fmt::format("{} groups messages of {} bytes on device memory, which go through as much pinned "
                              "memory: {}",
                              context.name, bytes, block.status().message()));
  }
  std::byte* host = block.value();
  std::vector<Transfer> on_host(transfers.begin(), transfers.end());
  HostStaging::Fragment fragment;
  for (Transfer& t : on_host) {
    const std::size_t size = t.count * size_of(t.type);
    (t.sending ? fragment.in : fragment.out).push_back({static_cast<std::byte*>(t.buffer), host, size});
    t.buffer = host;
    host += round_up(size, transport::kCacheLine);
  }
  const std::uint64_t number = staging.begin(1);
  return pipeline_.enqueue(number, {&fragment, 1}, stream, [this, number, on_host = std::move(on_host)] {
    Status status = pipeline_.await_stream(number);
    if (status.ok()) status = parts_.p2p.run(on_host);
    pipeline_.staging().end(number);
    return status;
  });
}

}  // namespace tutti
