// What a call sends to ranks on other hosts: its announcement, data and signals, through the transport's network links.
//
// In an express call a signal carries the announcement. In any other call the announcement goes with what is sent to
// that peer anyhow, if the call is like the last one; then no peer waits for it at the gate.
//
// Threads: one at a time. Errors: every failure is final for the communicator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "collectives/executor/host/base_table.h"
#include "collectives/executor/host/call_entry.h"
#include "collectives/executor/host/net_puts.h"
#include "collectives/executor/host/signal_links.h"
#include "collectives/executor/prepared.h"
#include "collectives/executor/wait/wait.h"
#include "transport/transport.h"
#include "transport/wire/net_links.h"

namespace tutti::executor {

/// Bytes from memory that the wire has exposed into such memory of a remote rank: to `at` in its region.
struct RemoteMove {
  int peer = -1;
  transport::Region to = 0;
  std::size_t at = 0;
  const std::byte* from = nullptr;
  std::size_t bytes = 0;
};

class NetSteps {
 public:
  NetSteps(transport::Transport& transport, Waiter& waiter, CallEntry& entry, SignalLinks& links, BaseTable& bases,
           int rank);

  transport::NetLinks& network() { return network_; }
  NetPuts& puts() { return puts_; }

  /// Sends the call's announcement to a remote rank, with what goes to it next.
  Status announce(int peer);
  /// Announces the call to the ranks that must know of it: the remote ones among the `neighbours` of this call, and
  /// those of the last call. `signalled`: by rank, the peers that an express call signals; else empty.
  Status announce(std::span<const int> neighbours, const std::vector<bool>& signalled);
  /// Announces the call to those peers that it has not signalled yet, since what this rank waits for may not come.
  void announce_pending();
  /// Announces a call without a plan, among several hosts, to all remote ranks, and waits until they have announced it
  /// too. Since no rank runs ahead, each finds the others' records where it looks for them.
  Status meet_remote_ranks();

  /// Before the steps of a plan: decides what may be held back. Returns whether finish() must send that too.
  bool begin(const Prepared& prepared);
  /// After the steps: waits until all buffers are free and what was sent has left. `flush`: as begin() has returned.
  Status finish(bool flush);
  Status signal(int peer, int lane, int channel);
  /// Sends the signal of a plan whose data fits into it.
  Status signal_express(const Prepared& prepared, int peer);

  /// Puts the moves when `peers` have entered the call, and signals them behind that in every lane. Returns the bytes.
  Result<std::size_t> move(std::span<const int> peers, std::span<const RemoteMove> moves);

 private:
  transport::NetLinks& network_;
  Waiter& waiter_;
  CallEntry& entry_;
  SignalLinks& links_;
  BaseTable& bases_;
  const int rank_;
  NetPuts puts_;
  std::vector<std::uint64_t> announced_;  // by rank: the latest call that was announced to it
  std::vector<int> neighbours_;           // the remote ones of the last call
  std::vector<int> pending_;              // peers of this call to which its signals announce it
  std::uint64_t unannounced_ = 0;         // express calls, one after another
  std::uint64_t last_prepared_ = 0;       // id of the last call's plan
};

}  // namespace tutti::executor
