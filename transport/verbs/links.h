// The links of a verbs wire to all ranks, and how they move and break.
//
// Threads: the owner serialises.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/backoff.h"
#include "topology/rails.h"
#include "transport/verbs/flow.h"
#include "transport/verbs/link.h"
#include "transport/verbs/memory.h"
#include "transport/verbs/rail.h"
#include "transport/wire/wire.h"

namespace tutti::transport::verbs {

class Links {
 public:
  struct Peer {
    std::vector<Link*> links;         // of linked ranks: lane k goes by the k-th, around
    topology::RailShare own, theirs;  // their rails at either end; from connect() on
    Status broken;
  };

  /// Both outlive it.
  Links(const WireJob& job, const Rails& rails) : job_(job), rails_(rails), shares_(job.hosts) {}
  /// Returns how many links each of so many rails will have.
  std::vector<int> share(int rails);
  /// Makes the links, once the rails are open; `memory` has their bounce buffers.
  Status make(Memory& memory);
  /// Returns what peers must know, as text.
  std::string address() const;
  Status connect(int rank, const std::string& address);
  /// Waits until what is under way has arrived, for a while: a queue pair that goes takes that with it.
  void finish();

  const std::vector<std::unique_ptr<Link>>& all() const { return links_; }  // by rank, then lane: Link::place()
  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  /// Returns the pauses of sleep(): nothing reports that a peer has written here.
  Backoff& backoff() { return backoff_; }
  /// Errors: the rank is broken; invalid_argument, it is on this host.
  Result<Link*> to(int rank, int lane);
  /// Moves what can move after a write has been given to a link, and returns the state of its rank.
  Status after_write(int rank, const Link& link);

  /// Takes what has completed, and moves what waited for that. Returns true if there was anything.
  bool poll();
  void send_all();
  void probe_silent_links();
  void spread_breaks();

 private:
  bool advance();
  void break_rail(std::size_t rail);

  const WireJob& job_;
  const Rails& rails_;
  const topology::RailShares shares_;
  std::vector<std::unique_ptr<Link>> links_;
  std::unordered_map<std::uint64_t, Link*> link_by_pair_;  // rail << 32 | number of the queue pair
  std::vector<Peer> peers_;
  Backoff backoff_{std::chrono::microseconds(20), std::chrono::milliseconds(1)};
  std::int64_t probed_ns_ = 0;
  bool any_break_ = false;
  bool is_waiting_ = false;  // a link may be waits()
};

}  // namespace tutti::transport::verbs
