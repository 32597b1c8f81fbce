#include "collectives/calls/call_preparer.h"

#include <fmt/format.h>

#include <cstdint>
#include <utility>

#include "collectives/algorithms/table.h"
#include "collectives/calls/call_identity.h"
#include "collectives/calls/validate.h"
#include "collectives/plan/rename.h"
#include "collectives/planner/demand.h"

namespace tutti {

std::size_t PreparedCall::memory() const {
  std::size_t bytes = 0;
  for (const Plan& plan : {first, if_plain, if_in_place}) bytes += plan ? plan->memory() : 0;
  return bytes;
}

CallPreparer::CallPreparer(const CommContext& context, std::unique_ptr<planner::Planner> planner,
                           std::vector<int> among)
    : context_(context), planner_(std::move(planner)), among_(std::move(among)) {}

Result<std::unique_ptr<const PreparedCall>> CallPreparer::prepare(const Call& call) {
  auto made = std::make_unique<PreparedCall>();
  made->preparer = this;
  made->request = requested_algorithm(call, context_.options);
  planner::DemandOptions options;
  options.deterministic = context_.options.deterministic;
  options.preferred = context_.options.algorithm;
  options.load_store = among_.empty() && context_.transport->capabilities().load_store;
  options.buffers_open = among_.empty();
  options.lanes = kLanes;
  const int ranks = among_.empty() ? context_.size() : static_cast<int>(among_.size());
  const std::size_t bytes = elements_of(call, ranks) * size_of(call.type);
  const planner::Demand demand = planner::demand_of(call, ranks, bytes, options);
  TUTTI_TRY(among_.empty() ? add_plans(*made, call, demand) : add_embedded_plan(*made, call, demand));
  const executor::CallIdentity identity = identity_of(call, context_.options);
  made->announcement = {identity, identity.fingerprint(), made->first->algorithm, bytes};
  return std::unique_ptr<const PreparedCall>(std::move(made));
}

Status CallPreparer::add_plans(PreparedCall& to, const Call& call, planner::Demand demand) {
  const transport::Capabilities& can = context_.transport->capabilities();
  TUTTI_ASSIGN(to.first, plan_for(demand, call, nullptr));
  to.handles = to.first->opens;
  demand.plain = !can.any_pointer;
  demand.buffers_open = can.any_pointer || can.cross_memory;
  if (to.handles && demand.plain) {
    TUTTI_ASSIGN(to.if_plain, plan_for(demand, call, to.first));
    if (to.if_plain->algorithm == to.first->algorithm) to.if_plain = nullptr;
  }
  if (!algorithms::table()[to.first->algorithm].in_place) {
    demand.in_place = true;
    TUTTI_ASSIGN(to.if_in_place, plan_for(demand, call, to.first));
  }
  to.agreement = to.if_plain || to.if_in_place;
  return {};
}

Status CallPreparer::add_embedded_plan(PreparedCall& to, const Call& call, const planner::Demand& demand) {
  TUTTI_ASSIGN(const planner::Choice choice, planner_->choose(demand, call.root));
  const auto plan = std::make_shared<const plan::Plan>(plan::embedded(*choice.plan, among_, context_.size()));
  TUTTI_ASSIGN(to.first, ready(choice, plan, call, {}));
  return {};
}

Result<PreparedCall::Plan> CallPreparer::plan_for(planner::Demand demand, const Call& call,
                                                  const PreparedCall::Plan& first) {
  // An algorithm that was asked for by name, and could serve, may not do so for the buffers that some rank has brought.
  std::string instead, names;
  if (first && !demand.algorithm.empty()) {
    const algorithms::Algorithm& asked = algorithms::table()[first->algorithm];
    const std::string why = planner::why_not(asked, demand);
    const bool by_name = planner::is_named(demand.algorithm, asked.name);
    if (by_name && !why.empty()) instead = fmt::format("{} was asked for, but it {}; ", asked.name, why);
    demand.algorithm = names = planner::names_or_auto(demand.algorithm);
  }
  TUTTI_ASSIGN(const planner::Choice choice, planner_->choose(demand, call.root));
  return ready(choice, choice.plan, call, instead);
}

Result<PreparedCall::Plan> CallPreparer::ready(const planner::Choice& choice,
                                               const std::shared_ptr<const plan::Plan>& plan, const Call& call,
                                               const std::string& instead) const {
  executor::PlanLimits limits = executor::limits_of(context_.transport->sizes());
  if (context_.multi_host()) limits.slice_bytes = kNetSlice;
  if (choice.slice > 0) limits.slice_bytes = choice.slice;
  const executor::Shape shape{call.collective, call.type, call.op, call.root, call.count};
  TUTTI_ASSIGN(const std::shared_ptr<executor::Prepared> prepared,
               executor::prepare(plan, context_.rank, shape, limits, context_.streaming_above));
  prepared->algorithm = static_cast<std::uint32_t>(choice.algorithm - algorithms::table().data());
  prepared->reason = instead + choice.reason;
  return PreparedCall::Plan(prepared);
}

}  // namespace tutti
