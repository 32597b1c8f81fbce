// How the survivors of a failed communicator agree on who they are. The old communicator's signals are in an unknown
// state.
//
// On one host the bootstrap server may be dead, so they use nothing but their boards, which stay mapped whatever
// happens to their owners: each rank writes the set of ranks that it believes alive, and they have agreed once every
// rank in that set has written the same set. A rank that dies meanwhile changes the set, and they begin again.
//
// On several hosts no rank sees all boards. There the bootstrap server hears of every death and gives all who have come
// the same answer (Bootstrap::exchange_with_survivors). A rank that dies meanwhile is missing at the next stage, and
// they begin again.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "collectives/calls/comm_context.h"

namespace tutti {

/// One shrink. Threads: the caller's.
class Survivors {
 public:
  /// The steps of a shrink, in order.
  enum class Stage : std::uint64_t { agreed = 1, exchanged = 2, ready = 3 };

  /// `shrinks`: the number of the shrink, from 1; the same on all ranks.
  static std::unique_ptr<Survivors> of(CommContext& context, std::uint64_t shrinks, std::int64_t deadline_ns);
  Survivors(CommContext& context, std::uint64_t shrinks, std::int64_t deadline_ns)
      : context_(context), shrinks_(shrinks), deadline_ns_(deadline_ns) {}
  virtual ~Survivors() = default;

  /// Returns the ranks that are alive, as all of them agree. `attempt`: of this shrink, from 0. Errors: timeout.
  virtual Result<std::vector<int>> agree(int attempt) = 0;
  /// Returns the words of all survivors, in rank order. Errors: peer_died (begin again), timeout.
  virtual Result<Words> exchange(const std::vector<int>& survivors, int attempt, Stage stage, const Words& mine) = 0;

 protected:
  bool has_left(int rank) const {
    return context_.transport->window(rank).board->pulse.has_left.load(std::memory_order_acquire) != 0;
  }

  CommContext& context_;
  const std::uint64_t shrinks_;
  const std::int64_t deadline_ns_;
};

}  // namespace tutti
