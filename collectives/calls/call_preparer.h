// Makes a kind of call ready: its plans, and what a rank announces of it.
//
// Threads: one at a time, the thread that runs calls.
#pragma once

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

class CallPreparer;

/// A kind of call, made ready.
struct PreparedCall {
  using Plan = std::shared_ptr<const executor::Prepared>;

  const CallPreparer* preparer = nullptr;
  executor::Announcement announcement;
  std::string request;     // algorithms by name; may be empty
  bool handles = false;    // peers touch each other's buffers
  bool agreement = false;  // the ranks find out at each call which of the plans below serves
  Plan first;
  Plan if_plain;     // when some buffer is not registered; null: first
  Plan if_in_place;  // when some rank is in place; null: first

  /// Bytes that its plans take, estimated.
  std::size_t memory() const;
};

class CallPreparer {
 public:
  /// `among`: the calls are among these ranks of the communicator alone, of which this one is one; empty: among all.
  CallPreparer(const CommContext& context, std::unique_ptr<planner::Planner> planner, std::vector<int> among = {});

  /// Errors: as the planner's.
  Result<std::unique_ptr<const PreparedCall>> prepare(const Call& call);
  const planner::Planner& planner() const { return *planner_; }

 private:
  /// Makes the plans of a call among all ranks.
  Status add_plans(PreparedCall& to, const Call& call, planner::Demand demand);
  /// Makes the one plan of a call among some ranks, on slots that no peer reaches.
  Status add_embedded_plan(PreparedCall& to, const Call& call, const planner::Demand& demand);
  /// `first`: the first plan of the call, if there is one.
  Result<PreparedCall::Plan> plan_for(planner::Demand demand, const Call& call, const PreparedCall::Plan& first);
  Result<PreparedCall::Plan> ready(const planner::Choice& choice, const std::shared_ptr<const plan::Plan>& plan,
                                   const Call& call, const std::string& instead) const;

  const CommContext& context_;
  const std::unique_ptr<planner::Planner> planner_;
  const std::vector<int> among_;
};

}  // namespace tutti
