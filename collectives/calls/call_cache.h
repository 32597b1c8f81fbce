// The plans of calls, made ready when a call is new and kept for the next ones like it.
//
// Threads: one at a time, the thread that runs calls.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "collectives/call.h"
#include "collectives/calls/comm_context.h"
#include "collectives/executor/prepared.h"
#include "collectives/executor/record.h"
#include "collectives/planner/planner.h"

namespace tutti {

/// A kind of call, made ready.
struct PreparedCall {
  using Plan = std::shared_ptr<const executor::Prepared>;

  executor::Shape shape;
  bool deterministic = false;
  std::string request;  // algorithms by name; may be empty
  executor::Announcement announcement;
  bool handles = false;    // peers touch each other's buffers
  bool agreement = false;  // the ranks find out at each call which of the plans below serves
  Plan first;
  Plan if_plain;     // when some buffer is not registered; null: first
  Plan if_in_place;  // when some rank is in place; null: first
  std::size_t bytes = 0;
};

class CallCache {
 public:
  /// `among`: the calls are among these ranks of the communicator alone, of which this one is one; empty: among all.
  CallCache(const CommContext& context, std::unique_ptr<planner::Planner> planner, std::vector<int> among = {});

  /// Returns the entry for this call, and makes it when the call is new. Valid until the next get(). Errors: as the
  /// planner's.
  Result<const PreparedCall*> get(const Call& call);
  /// Returns the bytes that plans take, estimated.
  std::size_t memory() const;
  const planner::Planner& planner() const { return *planner_; }

 private:
  // Entries are found by a hash, a few in each set, the one used last in front.
  static constexpr int kSetBits = 6;
  static constexpr std::size_t kWays = 4;
  using Set = std::array<std::unique_ptr<PreparedCall>, kWays>;

  Result<std::unique_ptr<PreparedCall>> prepare(const Call& call);
  /// Makes the plans of a call among all ranks.
  Status add_plans(PreparedCall& to, const Call& call);
  /// Makes the one plan of a call among some ranks, on slots that no peer reaches.
  Status add_embedded_plan(PreparedCall& to, const Call& call);
  int ranks() const { return among_.empty() ? context_.size() : static_cast<int>(among_.size()); }
  planner::Demand demand_of(const Call& call, std::size_t bytes) const;
  Result<PreparedCall::Plan> plan_for(planner::Demand demand, const PreparedCall& call);
  Result<PreparedCall::Plan> ready(const planner::Choice& choice, const std::shared_ptr<const plan::Plan>& plan,
                                   const executor::Shape& shape, const std::string& instead) const;

  const CommContext& context_;
  const std::unique_ptr<planner::Planner> planner_;
  const std::vector<int> among_;
  std::array<Set, 1 << kSetBits> sets_;
};

}  // namespace tutti
