// The communicator's calls on device memory that the network's cards carry from GPU to GPU (GPUDirect): calls in which
// nothing is added, among ranks that are on hosts of their own. They are turns, as where the data goes through pinned
// memory (communicator_staged.cc), but the slots lie in the GPU's memory, which the wire exposes:
//
//   stream   in 0, told | in 1, told | in 2, told | in 3, told | until 0 is done, out 0 | in 4, told | until 1 is ...
//   proxy               | turn 0: when a peer has entered it, what is for the peer goes from the own slot into its ...
//
// A rank enters a turn when its stream has come to it, and so has taken out what the turn four before it has left in
// the slot. So a peer that is seen to have entered has its slot free, and what was put to it comes before the signal
// behind.

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/calls/validate.h"
#include "collectives/communicator/communicator.h"
#include "collectives/device/multi_host/gdr_moves.h"

namespace tutti {

namespace {

// A turn waits for its peers to enter it, one way through the network more than a call on pinned memory, which copies
// over PCIe instead: as much as 64 KiB at 25 GB/s. A guess until somebody measures it.
constexpr std::size_t kLeastDirectBytes = std::size_t{64} << 10;

}  // namespace

bool TuttiCommunicator::wants_direct(const Call& call, int ranks) const {
  return direct_open_ != Opened::refused && is_gdr(call, ranks) && call.algorithm.empty() &&
         options_.algorithm.empty() && elements_of(call, size()) * size_of(call.type) >= kLeastDirectBytes;
}

bool TuttiCommunicator::each_on_its_host() const {
  const std::vector<int>& hosts = planner_->hosts();
  return std::set<int>(hosts.begin(), hosts.end()).size() == hosts.size();
}

Result<std::string> TuttiCommunicator::expose_direct() {
  // A grid's windows may have taken all that is left of the limit.
  if (grid_open_ == Opened::yes && options_.memory_limit != 0) return unsupported("memory_limit is set");
  transport::Wire& wire = transport_->far_links()->wire();
  if (!wire.info().to_devices) return unsupported(wire.info().name + " has no way to a device's memory");
  TUTTI_ASSIGN(const HostStaging::Direct direct, staging_->open_gdr());
  TUTTI_ASSIGN(const std::string key, wire.expose_device(direct.base, direct.bytes, direct.memory));
  direct_base_ = direct.base;
  direct_bytes_ = direct.bytes;
  return key;
}

Result<bool> TuttiCommunicator::open_gdr(const executor::CallIdentity& identity) {
  if (direct_open_ != Opened::untried) return direct_open_ == Opened::yes;
  wait_for_queue();
  waiter_.set_background(false);
  const Result<std::string> key = expose_direct();
  // The length of the key, 0 where there is none, and the key.
  Words mine(1 + transport::Wire::kMostKeyWords);
  if (key.ok()) {
    mine[0] = key.value().size();
    std::memcpy(&mine[1], key.value().data(), key.value().size());
  }
  TUTTI_ASSIGN(const Words all, gather_as(identity, mine));
  direct_open_ = Opened::yes;
  for (int r = 0; r < size() && direct_open_ == Opened::yes; ++r) {
    if (all[static_cast<std::size_t>(r) * mine.size()] != 0) continue;
    direct_open_ = Opened::refused;
    direct_refused_ = key.ok() ? who(r) + " has none" : key.status().message();
  }
  if (direct_open_ == Opened::refused) {
    close_direct();
    return false;
  }
  transport::FarLinks& links = *transport_->far_links();
  for (int r = 0; r < size(); ++r) {
    transport::Region& region = direct_regions_.emplace_back(0);
    if (!links.far(r)) continue;
    const std::uint64_t* const words = &all[static_cast<std::size_t>(r) * mine.size()];
    const std::string_view theirs(reinterpret_cast<const char*>(words + 1), words[0]);
    const auto attached = links.wire().attach(links.member(r), theirs, direct_bytes_);
    if (!attached.ok()) return failed(attached.status());
    region = attached.value();
  }
  return true;
}

void TuttiCommunicator::close_direct() {
  if (direct_base_ == nullptr) return;
  transport::Wire& wire = transport_->far_links()->wire();
  for (const transport::Region region : direct_regions_) {
    if (region != 0) wire.detach(region);
  }
  // After a failure a peer may still be writing there. A turn that has ended well has had all that was put to it.
  if (health_.failed()) {
    staging_->abandon_gdr();
  } else {
    wire.conceal(direct_base_);
  }
  direct_base_ = nullptr;
}

Status TuttiCommunicator::run_direct(const Call& call) {
  TUTTI_ASSIGN(const std::size_t bytes, slot_bytes());
  const auto staged = std::make_shared<const HostStagedCall>(call, rank_, size(), bytes);
  const std::size_t count = staged->fragments();
  const std::uint64_t first = staging_->begin(count);
  const std::uint64_t first_direct = direct_turns_;
  direct_turns_ += count;
  const auto on_device = [this, staged, first_direct](std::size_t turn) {
    return staged->call(turn, gdr_input(first_direct + turn), gdr_output(first_direct + turn));
  };
  std::vector<HostStaging::Fragment> turns;
  for (std::size_t turn = 0; turn < count; ++turn) {
    std::byte* const input = gdr_input(first_direct + turn);
    std::byte* const output = gdr_output(first_direct + turn);
    HostStaging::Fragment& put = turns.emplace_back(staged->copies(turn, input, output));
    for (const GdrMove& move : gdr_moves(on_device(turn), rank_, size())) {
      if (move.rank == rank_) put.in.push_back({input + move.from, output + move.to, move.bytes});
    }
  }
  return start_turns(first, turns, call.stream, [this, staged, first, first_direct, count, on_device] {
    std::vector<int> ranks;
    for (int r = 0; r < size(); ++r) ranks.push_back(r);
    return carry_out_turns(first, count, [&](std::size_t turn) {
      return carry_out_direct(staged->whole(), on_device(turn), ranks, first_direct + turn,
                              count > 1 ? staged->part() : 0);
    });
  });
}

Status TuttiCommunicator::carry_out_direct(const Call& whole, const Call& turn, std::span<const int> ranks,
                                           std::uint64_t number, std::size_t cut) {
  TUTTI_TRY(bound_run_ahead());
  std::vector<int> peers;
  int me = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] == rank_) {
      me = static_cast<int>(i);
    } else {
      peers.push_back(ranks[i]);
    }
  }
  std::vector<executor::HostExecutor::RemoteMove> moves;
  std::size_t bytes = 0;
  for (const GdrMove& move : gdr_moves(turn, me, static_cast<int>(ranks.size()))) {
    if (move.rank == me) continue;
    const int peer = ranks[static_cast<std::size_t>(move.rank)];
    moves.push_back({peer, direct_regions_[static_cast<std::size_t>(peer)], staging_->gdr_output(number) + move.to,
                     gdr_input(number) + move.from, move.bytes});
    bytes += move.bytes;
  }
  const executor::CallIdentity identity = identity_on_device(whole, cut);
  executor_.enter({identity, identity.fingerprint(), transport::kNoAlgorithm, bytes}, {}, false);
  Status status = executor_.move_remote(peers, moves);
  if (status.ok() && health_.failed()) status = health_.status();
  if (status.ok()) status = staging_->settle_gdr();
  if (!status.ok()) executor_.drop_net_puts();
  executor_.leave(status.ok());
  last_ = nullptr;
  last_on_device_ = false;
  last_direct_ = true;
  if (watched_) told(last_call(), "direct", fmt::format("direct: {} bytes from GPU to GPU", bytes));
  return status.ok() ? status : failed(status);
}

}  // namespace tutti
