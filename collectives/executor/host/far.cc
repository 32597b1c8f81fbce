// Steps that reach ranks on other hosts: what is put and signalled goes by the transport's far links.

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
#include "collectives/executor/host/far_record.h"
#include "collectives/reduce/reduce.h"

namespace tutti::executor {

using plan::Space;
using plan::StepKind;
using transport::CallRecord;
using transport::Push;

Status HostExecutor::announce_far(int peer) {
  const std::size_t index = sequence_ % transport::kCallRing;
  CallRecord record;
  seal_far(board_->calls[index], 0, record);
  const Status told = far_->note(peer, &far_->mirror_at(peer).calls[index], &record, kFarRecordBytes, Push::later);
  if (!told.ok()) return waiter_.lost(peer, told);
  peers_[static_cast<std::size_t>(peer)].told = sequence_;
  return {};
}

Status HostExecutor::announce_far(std::span<const int> neighbours, const std::vector<bool>& signalled) {
  // Whom this rank is going to signal, in an express call, it tells by that, unless that is the first word for so long
  // that the peer may be waiting for one before it sends what this rank waits for.
  const auto soon = [&](int peer) {
    const auto p = static_cast<std::size_t>(peer);
    return !signalled.empty() && signalled[p] && sequence_ - peers_[p].told < express_bases_.size() / 2;
  };
  left_out_.clear();
  for (const int peer : neighbours) {
    if (!far_->far(peer)) continue;
    if (soon(peer)) {
      left_out_.push_back(peer);
    } else {
      TUTTI_TRY(announce_far(peer));
    }
  }
  for (const int peer : far_neighbours_) {
    const bool told = std::find(neighbours.begin(), neighbours.end(), peer) != neighbours.end();
    if (!told) TUTTI_TRY(announce_far(peer));
  }
  far_neighbours_.clear();
  std::copy_if(neighbours.begin(), neighbours.end(), std::back_inserter(far_neighbours_),
               [this](int peer) { return far_->far(peer); });
  return {};
}

// What it waits for may not come: then the others must know in which call it is.
void HostExecutor::speak_up() {
  for (const int peer : left_out_) {
    if (peers_[static_cast<std::size_t>(peer)].told < sequence_) (void)announce_far(peer);  // a failure is in health_
  }
  left_out_.clear();
  (void)far_->post();
}

std::uint64_t HostExecutor::told_by_far(int peer, std::uint64_t needed) const {
  const std::uint64_t oldest = sequence_ > kLookBack ? sequence_ - kLookBack : 0;
  for (std::uint64_t call = sequence_; call > 0 && call >= needed && call > oldest; --call) {
    if (waiter_.has_told(peer, call)) return call;
  }
  return needed > 0 && waiter_.has_told(peer, needed) ? needed : 0;
}

Status HostExecutor::see_entered_far(int peer, std::uint64_t needed) {
  Peer& p = peers_[static_cast<std::size_t>(peer)];
  if (p.entered >= needed) return {};
  std::uint64_t call = 0;
  const auto told = [&] { return (call = told_by_far(peer, needed)) != 0; };
  if (!told()) TUTTI_TRY(waiter_.until(told, peer));
  const auto record = [&](int rank) -> const CallRecord& { return board_of(rank).calls[call % transport::kCallRing]; };
  // It may be so far ahead, or the call so long ago, that there is nothing left to compare.
  if (record(peer).sequence.load(std::memory_order_acquire) == call && record(rank_).sequence.load() == call) {
    return compare(peer, call);
  }
  p.entered = std::max(p.entered, call);
  return {};
}

Status HostExecutor::meet_far() {
  for (int peer = 0; peer < ranks_; ++peer) {
    if (far_->far(peer)) TUTTI_TRY(announce_far(peer));
  }
  TUTTI_TRY(far_puts_->finish());
  for (int peer = 0; peer < ranks_; ++peer) {
    if (far_->far(peer)) TUTTI_TRY(see_entered_far(peer, sequence_));
  }
  return {};
}

// What is put to a rank in a lane comes before the signal in that lane; so each lane, which may be a rail, has its part
// and its signal.
Status HostExecutor::move_far(std::span<const int> peers, std::span<const FarMove> moves) {
  TUTTI_TRY(announce_far(peers, {}));
  for (const int peer : peers) TUTTI_TRY(see_entered_far(peer, sequence_));
  const int lanes = sizes_.lanes;
  for (const FarMove& move : moves) {
    const std::size_t lines = largest_share(move.bytes, transport::kCacheLine);
    for (int lane = 0; lane < lanes; ++lane) {
      const Share share = even_share(lines, static_cast<std::size_t>(lanes), static_cast<std::size_t>(lane));
      const std::size_t begin = share.offset * transport::kCacheLine;
      const std::size_t end = std::min(begin + share.size * transport::kCacheLine, move.bytes);
      if (begin >= end) continue;
      TUTTI_TRY(far_puts_->put(move.peer, lane, move.to, move.at + begin, move.from + begin, end - begin));
    }
    counters_.bytes += move.bytes;
  }
  for (const int peer : peers) {
    for (int lane = 0; lane < lanes; ++lane) TUTTI_TRY(signal_far(peer, lane, 0));
  }
  for (const int peer : peers) {
    for (int lane = 0; lane < lanes; ++lane) TUTTI_TRY(wait(peer, lane, 0, true).status());
  }
  return far_puts_->finish();
}

Status HostExecutor::signal_far(int peer, int lane, int channel) {
  Link& l = link(peer, lane, channel);
  ++counters_.signals;
  const Status sent = far_->signal(peer, lane, l.out, ++l.sent, tag_, Push::now);
  return sent.ok() ? sent : waiter_.lost(peer, sent);
}

Status HostExecutor::signal_express_far(const Prepared& prepared, int peer) {
  transport::ExpressCell& cell = express_cell(peer, rank_, sequence_);
  const std::size_t bytes = prepared.express_bytes + prepared.express_put;  // one of them is 0
  if (prepared.express_bytes > 0) std::memcpy(far_payload(cell), express_.data(), bytes);
  const std::size_t along = bytes <= kMostAlong ? bytes : 0;
  if (bytes > along) TUTTI_TRY(far_puts_->put(peer, 0, far_payload(cell), far_payload(cell), bytes, true));
  seal_far(board_->calls[sequence_ % transport::kCallRing], along, far_record(cell));
  ++counters_.signals;
  const Status sent = far_->note(peer, &cell, &cell, kFarRecordBytes + along, Push::now);
  if (!sent.ok()) return waiter_.lost(peer, sent);
  peers_[static_cast<std::size_t>(peer)].told = sequence_;
  return {};
}

Status HostExecutor::wait_express_far(int peer) {
  const CallRecord& come = far_record(express_cell(rank_, peer, sequence_));
  const auto told = [&] { return come.sequence.load(std::memory_order_acquire) == sequence_ && is_whole(come); };
  if (!told()) TUTTI_TRY(waiter_.until(speaking_up(told), peer));
  if (come.fingerprint.load(std::memory_order_relaxed) != history_) TUTTI_TRY(waiter_.check_peer(peer, sequence_));
  peers_[static_cast<std::size_t>(peer)].entered = sequence_;
  return {};
}

Status HostExecutor::put_far(const Prepared& prepared, const PreparedStep& s, const Buffers& buffers,
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
    return far_puts_->put(target.range.rank, lane, to, from, elements * prepared.element, fixed);
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
    TUTTI_TRY(far_puts_->before_write(bounce_.data(), count * prepared.element));
    void* const bounced[] = {bounce_.data()};
    const void* const sources[] = {from + begin};
    reduce::reduce(spec, bounced, sources, count, false);
    TUTTI_TRY(far_puts_->put(target.range.rank, lane, to + begin, bounce_.data(), count * prepared.element, false));
  }
  return {};
}

}  // namespace tutti::executor
