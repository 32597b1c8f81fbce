// The members of a job and the ways between them: where a communicator, and every child that is split from it, gets its
// transport and hears of failures. One JobContext per rank of a job (ThreadJob, ProcessJob).
// Errors: connect() gives memory_limit when a rank has no memory for its window, and those of the exchange.
// Threads: any, except connect() and exchange_with_survivors(): one at a time. Callbacks may come on any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "collectives/planner/table.h"
#include "topology/topology.h"
#include "transport/exchange.h"
#include "transport/transport.h"
#include "transport/wire/wire.h"

namespace tutti {

/// Lanes of every window: instruction streams that a plan may have (collectives/plan/plan.h).
inline constexpr int kLanes = 2;
/// The slice in which a message moves between hosts, in bytes, unless the planner takes finer ones.
inline constexpr std::size_t kNetSlice = std::size_t{512} << 10;

using transport::Exchange;  // among the ranks of the new communicator
using transport::Words;

/// Returns how errors name a rank of the communicator that is made.
using NameOf = std::function<std::string(int rank)>;

/// Called with a failure that came from elsewhere; `member` is the one that died (Code::peer_died), or -1. Any thread.
using OnFailure = std::function<void(int member, Code code, const std::string& message)>;

/// The progress of a rank in a communicator, as Waiter::standing() says it. Any thread.
struct Whereabouts {
  std::function<std::uint64_t()> own;                          // this one's, for a member that asks
  std::function<void(int member, std::uint64_t standing)> of;  // a member has answered
};

class JobContext {
 public:
  /// The first word that a rank which cannot go on gives to the exchange in place of its window.
  static constexpr std::uint64_t kNothing = ~std::uint64_t{0};
  /// How many words connect() exchanges.
  virtual std::size_t connect_words() const { return 1; }
  Words nothing() const { return Words(connect_words(), kNothing); }

  virtual ~JobContext() = default;

  /// "host alpha, pid 4711".
  virtual std::string describe(int member) const = 0;

  /// The transport of rank `rank` among `members` (numbers in the job, by rank of the new communicator, which is
  /// `comm_id`). Makes exactly one exchange, also when it fails, so that the others do not wait in vain.
  virtual Result<std::unique_ptr<transport::Transport>> connect(std::uint64_t comm_id, std::span<const int> members,
                                                                int rank, const NameOf& name_of,
                                                                const transport::WindowSizes& sizes,
                                                                const Exchange& exchange) = 0;

  /// From now on failures of members, and those of the communicator `comm_id` that others report, go to on_failure;
  /// questions and answers of others to `whereabouts`.
  virtual void subscribe(std::uint64_t comm_id, std::vector<int> members, OnFailure on_failure,
                         Whereabouts whereabouts) = 0;
  virtual void unsubscribe(std::uint64_t comm_id) = 0;
  /// Reports a failure to the members of `comm_id` that do not share memory with this one. Deaths are not reported: all
  /// ranks get those from the bootstrap server. Returns true if the first failure that the server received will come
  /// back through on_failure. Never blocks.
  virtual bool report_failure(std::uint64_t comm_id, Code code, const std::string& message) = 0;

  /// Asks the members of `comm_id` that do not share memory with this one where they stand. Answers come a moment
  /// later, of those whose processes run, whatever they are doing; where the bootstrap server is gone there are none.
  /// Never blocks.
  virtual void ask(std::uint64_t /*comm_id*/) {}

  /// Exchanges words among those of `members` that are left, for communicators that span hosts. Returns them by place
  /// in `members`, the same for all of them; empty for the others. `name`: the same on all of them, used once.
  /// `gone`: by place, which members come no more though their processes live; asked again and again. `name_of`: takes
  /// a place. Errors, as the end of a sentence: timeout (a member has not come), unsupported (the bootstrap server is
  /// gone).
  virtual Result<std::vector<Words>> exchange_with_survivors(std::uint64_t /*name*/, std::span<const int> /*members*/,
                                                             const NameOf& /*name_of*/,
                                                             const std::function<std::vector<bool>()>& /*gone*/,
                                                             const Words& /*mine*/,
                                                             std::chrono::milliseconds /*limit*/) {
    return unsupported("all ranks are on one host");
  }

  /// The host of each member of the job: numbers that are equal on the same host.
  virtual std::vector<int> host_of_member() const = 0;
  /// Returns the topology of the job, a rank for each member, the same on all of them; null if there is one host.
  virtual const topology::Topology* topology() const { return nullptr; }
  /// Measured costs, which are in topology() already as far as they are a link's; the same on all members. Null where
  /// there are none, or one host.
  virtual const planner::Table* table() const { return nullptr; }
  /// Returns what is known of the network between hosts; null if there is one host.
  virtual const transport::WireInfo* wire_info() const { return nullptr; }

  /// Ranks of this job on this host, and CPUs that they have between them: more ranks than CPUs wait differently.
  virtual int local_members() const = 0;
  virtual int local_cpus() const = 0;
  /// Processes of this job on this host.
  virtual int local_processes() const = 0;
};

}  // namespace tutti
