#include "collectives/executor/host/net_steps.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/even_share.h"
#include "collectives/executor/net_record.h"

namespace tutti::executor {

using transport::CallRecord;
using transport::Flush;

NetSteps::NetSteps(transport::Transport& transport, Waiter& waiter, CallEntry& entry, SignalLinks& links,
                   BaseTable& bases, int rank)
    : network_(*transport.net_links()),
      waiter_(waiter),
      entry_(entry),
      links_(links),
      bases_(bases),
      rank_(rank),
      puts_(network_, waiter),
      announced_(static_cast<std::size_t>(transport.sizes().ranks)) {}

Status NetSteps::announce(int peer) {
  CallRecord record;
  write_net_record(entry_.record(), 0, record);
  CallRecord& there = network_.mirror_at(peer).calls[entry_.sequence() % transport::kCallRing];
  const Status sent = network_.put_inline(peer, &there, &record, kNetRecordBytes, Flush::later);
  if (!sent.ok()) return waiter_.lost(peer, sent);
  announced_[static_cast<std::size_t>(peer)] = entry_.sequence();
  return {};
}

Status NetSteps::announce(std::span<const int> neighbours, const std::vector<bool>& signalled) {
  // A peer that this rank signals in an express call learns of it by that. But if this rank has announced nothing to it
  // for long, the peer may wait for an announcement before it sends what this rank waits for.
  const auto soon = [&](int peer) {
    const auto p = static_cast<std::size_t>(peer);
    return !signalled.empty() && signalled[p] && entry_.sequence() - announced_[p] < bases_.express_calls() / 2;
  };
  pending_.clear();
  for (const int peer : neighbours) {
    if (!network_.is_remote(peer)) continue;
    if (soon(peer)) {
      pending_.push_back(peer);
    } else {
      TUTTI_TRY(announce(peer));
    }
  }
  for (const int peer : neighbours_) {
    const bool done = std::find(neighbours.begin(), neighbours.end(), peer) != neighbours.end();
    if (!done) TUTTI_TRY(announce(peer));
  }
  neighbours_.clear();
  std::copy_if(neighbours.begin(), neighbours.end(), std::back_inserter(neighbours_),
               [this](int peer) { return network_.is_remote(peer); });
  return {};
}

void NetSteps::announce_pending() {
  for (const int peer : pending_) {
    if (announced_[static_cast<std::size_t>(peer)] < entry_.sequence()) (void)announce(peer);  // Health has a failure
  }
  pending_.clear();
  (void)network_.flush();
}

Status NetSteps::meet_remote_ranks() {
  const auto each_remote = [this](auto&& visit) -> Status {
    for (int peer = 0; peer < links_.sizes().ranks; ++peer) {
      if (links_.is_remote(peer)) TUTTI_TRY(visit(peer));
    }
    return {};
  };
  TUTTI_TRY(each_remote([this](int peer) { return announce(peer); }));
  TUTTI_TRY(puts_.finish());
  return each_remote([this](int peer) { return entry_.see_entered_remote(peer, entry_.sequence()); });
}

// The announcement of an express call need not be a message: it goes with the next signal, or with the announcement of
// some later call, before the peer has used up the cells.
bool NetSteps::begin(const Prepared& prepared) {
  const bool again = std::exchange(last_prepared_, prepared.id) == prepared.id;
  unannounced_ = prepared.express ? unannounced_ + 1 : 0;
  const bool stays_unannounced = prepared.express && unannounced_ % (bases_.express_calls() / 2) != 0;
  waiter_.hold_back(stays_unannounced || (again && !prepared.express));
  return !stays_unannounced;
}

Status NetSteps::finish(bool flush) {
  waiter_.hold_back(false);
  return puts_.finish(flush);
}

Status NetSteps::signal(int peer, int lane, int channel) {
  SignalLink& l = links_.at(peer, lane, channel);
  const Status sent = network_.signal(peer, lane, l.out, ++l.sent, entry_.tag(), Flush::now);
  return sent.ok() ? sent : waiter_.lost(peer, sent);
}

Status NetSteps::signal_express(const Prepared& prepared, int peer) {
  transport::ExpressCell& cell = bases_.express_cell(peer, rank_, entry_.sequence());
  const std::size_t bytes = prepared.express_data.published + prepared.express_data.put;  // one of them is 0
  if (prepared.express_data.published > 0) std::memcpy(net_payload(cell), bases_.published(), bytes);
  const std::size_t along = bytes <= kMostAlong ? bytes : 0;
  if (bytes > along) TUTTI_TRY(puts_.put(peer, 0, net_payload(cell), net_payload(cell), bytes, true));
  write_net_record(entry_.record(), along, net_record(cell));
  const Status sent = network_.put_inline(peer, &cell, &cell, kNetRecordBytes + along, Flush::now);
  if (!sent.ok()) return waiter_.lost(peer, sent);
  announced_[static_cast<std::size_t>(peer)] = entry_.sequence();
  return {};
}

// What is put to a rank in a lane comes before the signal in that lane; so each lane, which may be a rail, has its part
// and its signal.
Result<std::size_t> NetSteps::move(std::span<const int> peers, std::span<const RemoteMove> moves) {
  TUTTI_TRY(announce(peers, {}));
  for (const int peer : peers) TUTTI_TRY(entry_.see_entered_remote(peer, entry_.sequence()));
  const int lanes = links_.sizes().lanes;
  std::size_t bytes = 0;
  for (const RemoteMove& move : moves) {
    const std::size_t lines = largest_share(move.bytes, transport::kCacheLine);
    for (int lane = 0; lane < lanes; ++lane) {
      const Share share = even_share(lines, static_cast<std::size_t>(lanes), static_cast<std::size_t>(lane));
      const std::size_t begin = share.offset * transport::kCacheLine;
      const std::size_t end = std::min(begin + share.size * transport::kCacheLine, move.bytes);
      if (begin >= end) continue;
      TUTTI_TRY(puts_.put(move.peer, lane, move.to, move.at + begin, move.from + begin, end - begin));
    }
    bytes += move.bytes;
  }
  for (const int peer : peers) {
    for (int lane = 0; lane < lanes; ++lane) TUTTI_TRY(signal(peer, lane, 0));
  }
  return bytes;
}

}  // namespace tutti::executor
