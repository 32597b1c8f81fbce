#include "collectives/device/multi_host/gdr_path.h"

#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <set>
#include <string_view>

#include "collectives/calls/call_identity.h"
#include "collectives/calls/validate.h"
#include "collectives/device/multi_host/gdr_moves.h"
#include "collectives/device/multi_host/host_staged_call.h"

namespace tutti {

namespace {

// A fragment waits for its peers to enter it, one way through the network more than a call on pinned memory, which
// copies over PCIe instead: as much as 64 KiB at 25 GB/s. A guess, not measured.
constexpr std::size_t kLeastGdrBytes = std::size_t{64} << 10;

}  // namespace

bool GdrPath::wants_among(const Call& call, int ranks) const {
  const CommContext& context = parts_.context;
  return refusal_.empty() && is_gdr(call, ranks) && requested_algorithm(call, context.options).empty() &&
         elements_of(call, context.size()) * size_of(call.type) >= kLeastGdrBytes;
}

bool GdrPath::wants(const Call& call) const {
  if (!wants_among(call, parts_.context.size())) return false;
  const std::vector<int>& hosts = parts_.host.planner().hosts();
  return std::set<int>(hosts.begin(), hosts.end()).size() == hosts.size();
}

Result<std::string> GdrPath::expose() {
  if (forbidden_) return unsupported("memory_limit is set");
  transport::Wire& wire = parts_.context.links->wire();
  if (!wire.info().to_devices) return unsupported(wire.info().name + " has no way to a device's memory");
  TUTTI_ASSIGN(const HostStaging::Direct slots, pipeline_.staging().open_gdr());
  TUTTI_ASSIGN(const std::string key, wire.expose_device(slots.base, slots.bytes, slots.memory));
  base_ = slots.base;
  bytes_ = slots.bytes;
  return key;
}

Result<bool> GdrPath::open(int /*device*/, const executor::CallIdentity& as) {
  if (open_ || !refusal_.empty()) return open_;
  parts_.context.use_callers_thread();
  const Result<std::string> key = expose();
  // The length of the key, 0 where there is none, and the key.
  Words mine(1 + transport::Wire::kMostKeyWords);
  if (key.ok()) {
    mine[0] = key.value().size();
    std::memcpy(&mine[1], key.value().data(), key.value().size());
  }
  TUTTI_ASSIGN(const Words all, parts_.gather.gather(as, mine));
  refusal_ = parts_.gather.refusal(all, mine.size(), key.status());
  if (!refusal_.empty()) {
    close();
    return false;
  }
  open_ = true;
  TUTTI_TRY(attach(all, mine.size()));
  return true;
}

Status GdrPath::attach(const Words& keys, std::size_t width) {
  transport::NetLinks& links = *parts_.context.links;
  for (int r = 0; r < parts_.context.size(); ++r) {
    transport::Region& region = regions_.emplace_back(0);
    if (!links.is_remote(r)) continue;
    const std::uint64_t* const words = &keys[static_cast<std::size_t>(r) * width];
    const std::string_view key(reinterpret_cast<const char*>(words + 1), words[0]);
    const auto attached = links.wire().attach(links.world_rank(r), key, bytes_);
    if (!attached.ok()) return parts_.context.fail(attached.status());
    region = attached.value();
  }
  return {};
}

void GdrPath::close() {
  if (base_ == nullptr) return;
  transport::Wire& wire = parts_.context.links->wire();
  for (const transport::Region region : regions_) {
    if (region != 0) wire.detach(region);
  }
  // After a failure a peer may still be writing there. A fragment that has ended well has had all that was put to it.
  if (parts_.context.health.failed()) {
    pipeline_.staging().abandon_gdr();
  } else {
    wire.unexpose(base_);
  }
  base_ = nullptr;
}

std::uint64_t GdrPath::reserve(std::size_t count) {
  const std::uint64_t first = fragments_;
  fragments_ += count;
  return first;
}

Status GdrPath::run(std::span<const Call> calls) {
  const Call& call = calls.front();
  const CommContext& context = parts_.context;
  TUTTI_ASSIGN(const std::size_t bytes, pipeline_.slot_bytes());
  const auto staged = std::make_shared<const HostStagedCall>(call, context.rank, context.size(), bytes);
  const std::size_t count = staged->fragments();
  const std::uint64_t first = pipeline_.staging().begin(count);
  const std::uint64_t first_slot = reserve(count);
  const auto on_device = [this, staged, first_slot](std::size_t fragment) {
    return staged->call(fragment, input(first_slot + fragment), output(first_slot + fragment));
  };
  std::vector<HostStaging::Fragment> fragments;
  for (std::size_t i = 0; i < count; ++i) {
    std::byte* const in = input(first_slot + i);
    std::byte* const out = output(first_slot + i);
    HostStaging::Fragment& put = fragments.emplace_back(staged->copies(i, in, out));
    for (const GdrMove& move : gdr_moves(on_device(i), context.rank, context.size())) {
      if (move.rank == context.rank) put.in.push_back({in + move.from, out + move.to, move.bytes});
    }
  }
  return pipeline_.enqueue(first, fragments, call.stream, [this, staged, first, first_slot, count, on_device] {
    std::vector<int> ranks(static_cast<std::size_t>(parts_.context.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    const executor::CallIdentity as =
        identity_on_device(staged->whole(), parts_.context.options, count > 1 ? staged->part() : 0);
    return pipeline_.run_fragments(first, count, [&](std::size_t fragment) {
      return run_fragment(as, on_device(fragment), ranks, first_slot + fragment);
    });
  });
}

Status GdrPath::run_fragment(const executor::CallIdentity& as, const Call& fragment, std::span<const int> ranks,
                             std::uint64_t number) {
  CommContext& context = parts_.context;
  TUTTI_TRY(parts_.host.bound_run_ahead());
  std::vector<int> peers;
  int me = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] == context.rank) {
      me = static_cast<int>(i);
    } else {
      peers.push_back(ranks[i]);
    }
  }
  std::vector<executor::RemoteMove> moves;
  std::size_t bytes = 0;
  for (const GdrMove& move : gdr_moves(fragment, me, static_cast<int>(ranks.size()))) {
    if (move.rank == me) continue;
    const int peer = ranks[static_cast<std::size_t>(move.rank)];
    moves.push_back({peer, regions_[static_cast<std::size_t>(peer)], pipeline_.staging().gdr_output(number) + move.to,
                     input(number) + move.from, move.bytes});
    bytes += move.bytes;
  }
  executor::HostExecutor& executor = parts_.host.executor();
  executor.entry.enter({as, as.fingerprint(), transport::kNoAlgorithm, bytes}, {}, false);
  Status status = executor.walker.move_remote(peers, moves);
  if (status.ok() && context.health.failed()) status = context.health.status();
  if (status.ok()) status = pipeline_.staging().settle_gdr();
  if (!status.ok()) executor.net->puts().drop();
  executor.entry.leave(status.ok());
  parts_.log.record_gdr(kLanes);
  if (parts_.log.is_watched()) {
    parts_.log.report(parts_.host.last_record(), "gdr", fmt::format("gdr: {} bytes from GPU to GPU", bytes));
  }
  return status.ok() ? status : context.fail(status);
}

}  // namespace tutti
