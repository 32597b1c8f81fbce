// Steps that reach ranks on other hosts: what is put and signalled goes by the transport's remote links.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/even_share.h"
#include "collectives/executor/host/executor.h"
#include "collectives/executor/host/net_record.h"
#include "collectives/reduce/reduce.h"

namespace tutti::executor {

using plan::Space;
using plan::StepKind;
using transport::CallRecord;
using transport::Push;

Status HostExecutor::announce_remote(int peer) {
  const std::size_t index = sequence_ % transport::kCallRing;
  CallRecord record;
  write_net_record(board_->calls[index], 0, record);
  const Status told = net_->note(peer, &net_->mirror_at(peer).calls[index], &record, kNetRecordBytes, Push::later);
  if (!told.ok()) return waiter_.lost(peer, told);
  peers_[static_cast<std::size_t>(peer)].told = sequence_;
  return {};
}

Status HostExecutor::announce_remote(std::span<const int> neighbours, const std::vector<bool>& signalled) {
  // Whom this rank is going to signal, in an express call, it tells by that, unless that is the first word for so long
  // that the peer may be waiting for one before it sends what this rank waits for.
  const auto soon = [&](int peer) {
    const auto p = static_cast<std::size_t>(peer);
    return !signalled.empty() && signalled[p] && sequence_ - peers_[p].told < express_bases_.size() / 2;
  };
  left_out_.clear();
  for (const int peer : neighbours) {
    if (!net_->far(peer)) continue;
    if (soon(peer)) {
      left_out_.push_back(peer);
    } else {
      TUTTI_TRY(announce_remote(peer));
    }
  }
  for (const int peer : remote_neighbours_) {
    const bool told = std::find(neighbours.begin(), neighbours.end(), peer) != neighbours.end();
    if (!told) TUTTI_TRY(announce_remote(peer));
  }
  remote_neighbours_.clear();
  std::copy_if(neighbours.begin(), neighbours.end(), std::back_inserter(remote_neighbours_),
               [this](int peer) { return net_->far(peer); });
  return {};
}

// What it waits for may not come: then the others must know in which call it is.
void HostExecutor::announce_pending() {
  for (const int peer : left_out_) {
    if (peers_[static_cast<std::size_t>(peer)].told < sequence_)
      (void)announce_remote(peer);  // a failure is in health_
  }
  left_out_.clear();
  (void)net_->post();
}

std::uint64_t HostExecutor::announced_by(int peer, std::uint64_t needed) const {
  const std::uint64_t oldest = sequence_ > kLookBack ? sequence_ - kLookBack : 0;
  for (std::uint64_t call = sequence_; call > 0 && call >= needed && call > oldest; --call) {
    if (waiter_.has_announced(peer, call)) return call;
  }
  return needed > 0 && waiter_.has_announced(peer, needed) ? needed : 0;
}

Status HostExecutor::see_entered_remote(int peer, std::uint64_t needed) {
  Peer& p = peers_[static_cast<std::size_t>(peer)];
  if (p.entered >= needed) return {};
  std::uint64_t call = 0;
  const auto told = [&] { return (call = announced_by(peer, needed)) != 0; };
  if (!told()) TUTTI_TRY(waiter_.until(told, peer));
  const auto record = [&](int rank) -> const CallRecord& { return board_of(rank).calls[call % transport::kCallRing]; };
  // It may be so far ahead, or the call so long ago, that there is nothing left to compare.
  if (record(peer).sequence.load(std::memory_order_acquire) == call && record(rank_).sequence.load() == call) {
    return compare(peer, call);
  }
  p.entered = std::max(p.entered, call);
  return {};
}

Status HostExecutor::meet_remote_ranks() {
  for (int peer = 0; peer < ranks_; ++peer) {
    if (net_->far(peer)) TUTTI_TRY(announce_remote(peer));
  }
  TUTTI_TRY(net_puts_->finish());
  for (int peer = 0; peer < ranks_; ++peer) {
    if (net_->far(peer)) TUTTI_TRY(see_entered_remote(peer, sequence_));
  }
  return {};
}

// What is put to a rank in a lane comes before the signal in that lane; so each lane, which may be a rail, has its part
// and its signal.
Status HostExecutor::move_remote(std::span<const int> peers, std::span<const RemoteMove> moves) {
  TUTTI_TRY(announce_remote(peers, {}));
  for (const int peer : peers) TUTTI_TRY(see_entered_remote(peer, sequence_));
  const int lanes = sizes_.lanes;
  for (const RemoteMove& move : moves) {
    const std::size_t lines = largest_share(move.bytes, transport::kCacheLine);
    for (int lane = 0; lane < lanes; ++lane) {
      const Share share = even_share(lines, static_cast<std::size_t>(lanes), static_cast<std::size_t>(lane));
      const std::size_t begin = share.offset * transport::kCacheLine;
      const std::size_t end = std::min(begin + share.size * transport::kCacheLine, move.bytes);
      if (begin >= end) continue;
      TUTTI_TRY(net_puts_->put(move.peer, lane, move.to, move.at + begin, move.from + begin, end - begin));
    }
    counters_.bytes += move.bytes;
  }
  for (const int peer : peers) {
    for (int lane = 0; lane < lanes; ++lane) TUTTI_TRY(signal_remote(peer, lane, 0));
  }
  for (const int peer : peers) {
    for (int lane = 0; lane < lanes; ++lane) TUTTI_TRY(wait(peer, lane, 0, true).status());
  }
  return net_puts_->finish();
}

Status HostExecutor::signal_remote(int peer, int lane, int channel) {
  Link& l = link(peer, lane, channel);
  ++counters_.signals;
  const Status sent = net_->signal(peer, lane, l.out, ++l.sent, tag_, Push::now);
  return sent.ok() ? sent : waiter_.lost(peer, sent);
}

Status HostExecutor::signal_express_remote(const Prepared& prepared, int peer) {
  transport::ExpressCell& cell = express_cell(peer, rank_, sequence_);
  const std::size_t bytes = prepared.express_bytes + prepared.express_put;  // one of them is 0
  if (prepared.express_bytes > 0) std::memcpy(net_payload(cell), express_.data(), bytes);
  const std::size_t along = bytes <= kMostAlong ? bytes : 0;
  if (bytes > along) TUTTI_TRY(net_puts_->put(peer, 0, net_payload(cell), net_payload(cell), bytes, true));
  write_net_record(board_->calls[sequence_ % transport::kCallRing], along, net_record(cell));
  ++counters_.signals;
  const Status sent = net_->note(peer, &cell, &cell, kNetRecordBytes + along, Push::now);
  if (!sent.ok()) return waiter_.lost(peer, sent);
  peers_[static_cast<std::size_t>(peer)].told = sequence_;
  return {};
}

Status HostExecutor::wait_express_remote(int peer) {
  const CallRecord& come = net_record(express_cell(rank_, peer, sequence_));
  const auto told = [&] { return come.sequence.load(std::memory_order_acquire) == sequence_ && is_whole(come); };
  if (!told()) TUTTI_TRY(waiter_.until(announcing_pending(told), peer));
  if (come.fingerprint.load(std::memory_order_relaxed) != history_) TUTTI_TRY(waiter_.check_peer(peer, sequence_));
  peers_[static_cast<std::size_t>(peer)].entered = sequence_;
  return {};
}

Status HostExecutor::put_remote(const Prepared& prepared, const PreparedStep& s, const Buffers& buffers,
                                std::span<const std::size_t> offsets, std::size_t elements, int lane) {
  const PreparedRange& source = prepared.ranges[s.sources];
  const PreparedRange& target = prepared.ranges[s.sources + 1];
  const std::byte* from = bases_of(prepared)[source.base];
  // The planner gives such links no other plans.
  TUTTI_CHECK(s.kind == StepKind::put && s.source_count == 1 && s.destination_count == 1 && from != nullptr &&
              target.range.space == Space::scratch);
  from += offsets[0];
  std::byte* to = transport_.window(target.range.rank).scratch + sequence_ % 2 * sizes_.scratch_half + offsets[1];
  if (prepared.shape.op != ReduceOp::premul_sum || !source.raw_input) {
    const bool fixed = source.range.space == Space::input && buffers.input != buffers.output;
    return net_puts_->put(target.range.rank, lane, to, from, elements * prepared.element, fixed);
  }
  // Multiplied on the way, a bounce buffer at a time.
  if (bounce_.empty()) bounce_.resize(kBounceBytes);
  const std::array<double, 1> factors{factor_of(source, buffers)};
  const reduce::Spec spec{
      .type = prepared.shape.type, .op = prepared.shape.op, .divide_by = 0.0, .factors = factors.data()};
  const std::size_t most = bounce_.size() / prepared.element;
  for (std::size_t done = 0; done < elements; done += most) {
    const std::size_t count = std::min(most, elements - done);
    const std::size_t begin = done * prepared.element;
    TUTTI_TRY(net_puts_->before_write(bounce_.data(), count * prepared.element));
    void* const bounced[] = {bounce_.data()};
    const void* const sources[] = {from + begin};
    reduce::reduce(spec, bounced, sources, count, false);
    TUTTI_TRY(net_puts_->put(target.range.rank, lane, to + begin, bounce_.data(), count * prepared.element, false));
  }
  return {};
}

}  // namespace tutti::executor
