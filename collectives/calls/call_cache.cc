#include "collectives/calls/call_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <utility>

#include "collectives/algorithms/table.h"
#include "collectives/calls/call_identity.h"
#include "collectives/calls/validate.h"
#include "collectives/plan/rename.h"
#include "collectives/planner/demand.h"

namespace tutti {

CallCache::CallCache(const CommContext& context, std::unique_ptr<planner::Planner> planner, std::vector<int> among)
    : context_(context), planner_(std::move(planner)), among_(std::move(among)) {}

Result<const PreparedCall*> CallCache::get(const Call& call) {
  const bool deterministic = is_deterministic(call, context_.options);
  const std::string_view request = requested_algorithm(call, context_.options);
  const auto matches = [&](const std::unique_ptr<PreparedCall>& entry) {
    return entry != nullptr && entry->shape.count == call.count && entry->shape.collective == call.collective &&
           entry->shape.type == call.type && entry->shape.op == call.op && entry->shape.root == call.root &&
           entry->deterministic == deterministic && entry->request == request;
  };
  const std::uint64_t words = static_cast<std::uint64_t>(call.collective) | static_cast<std::uint64_t>(call.type) << 8 |
                              static_cast<std::uint64_t>(call.op) << 16 | static_cast<std::uint64_t>(call.root) << 24;
  const std::uint64_t hash = (call.count * 0x9E3779B97F4A7C15ULL) ^ (words * 0xBF58476D1CE4E5B9ULL);
  Set& set = sets_[hash >> (64 - kSetBits)];
  const auto found = std::find_if(set.begin(), set.end(), matches);
  if (found == set.begin()) return found->get();
  if (found == set.end()) {
    TUTTI_ASSIGN(set.back(), prepare(call));
  }
  const auto entry = found == set.end() ? std::prev(set.end()) : found;
  std::rotate(set.begin(), entry, std::next(entry));
  return set.front().get();
}

Result<std::unique_ptr<PreparedCall>> CallCache::prepare(const Call& call) {
  auto made = std::make_unique<PreparedCall>();
  made->shape = {call.collective, call.type, call.op, call.root, call.count};
  made->deterministic = is_deterministic(call, context_.options);
  made->request = requested_algorithm(call, context_.options);
  made->bytes = elements_of(call, ranks()) * size_of(call.type);
  const Status added = among_.empty() ? add_plans(*made, call) : add_embedded_plan(*made, call);
  if (!added.ok()) return added;
  const executor::CallIdentity identity = identity_of(call, context_.options);
  made->announcement = {identity, identity.fingerprint(), made->first->algorithm, made->bytes};
  return made;
}

planner::Demand CallCache::demand_of(const Call& call, std::size_t bytes) const {
  planner::DemandOptions options;
  options.deterministic = context_.options.deterministic;
  options.preferred = context_.options.algorithm;
  options.load_store = among_.empty() && context_.transport->capabilities().load_store;
  options.buffers_open = among_.empty();
  options.lanes = kLanes;
  return planner::demand_of(call, ranks(), bytes, options);
}

Status CallCache::add_plans(PreparedCall& to, const Call& call) {
  const transport::Capabilities& can = context_.transport->capabilities();
  planner::Demand demand = demand_of(call, to.bytes);
  TUTTI_ASSIGN(to.first, plan_for(demand, to));
  to.handles = to.first->opens;
  demand.plain = !can.any_pointer;
  demand.buffers_open = can.any_pointer || can.cross_memory;
  if (to.handles && demand.plain) {
    TUTTI_ASSIGN(to.if_plain, plan_for(demand, to));
    if (to.if_plain->algorithm == to.first->algorithm) to.if_plain = nullptr;
  }
  if (!algorithms::table()[to.first->algorithm].in_place) {
    demand.in_place = true;
    TUTTI_ASSIGN(to.if_in_place, plan_for(demand, to));
  }
  to.agreement = to.if_plain || to.if_in_place;
  return {};
}

Status CallCache::add_embedded_plan(PreparedCall& to, const Call& call) {
  TUTTI_ASSIGN(const planner::Choice choice, planner_->choose(demand_of(call, to.bytes), call.root));
  const auto plan = std::make_shared<const plan::Plan>(plan::embedded(*choice.plan, among_, context_.size()));
  TUTTI_ASSIGN(to.first, ready(choice, plan, to.shape, {}));
  return {};
}

Result<PreparedCall::Plan> CallCache::plan_for(planner::Demand demand, const PreparedCall& call) {
  // An algorithm that was asked for by name, and could serve, may not do so for the buffers that some rank has brought.
  std::string instead, names;
  if (call.first && !demand.algorithm.empty()) {
    const algorithms::Algorithm& asked = algorithms::table()[call.first->algorithm];
    const std::string why = planner::why_not(asked, demand);
    const bool by_name = planner::is_named(demand.algorithm, asked.name);
    if (by_name && !why.empty()) instead = fmt::format("{} was asked for, but it {}; ", asked.name, why);
    demand.algorithm = names = planner::names_or_auto(demand.algorithm);
  }
  TUTTI_ASSIGN(const planner::Choice choice, planner_->choose(demand, call.shape.root));
  return ready(choice, choice.plan, call.shape, instead);
}

Result<PreparedCall::Plan> CallCache::ready(const planner::Choice& choice,
                                            const std::shared_ptr<const plan::Plan>& plan, const executor::Shape& shape,
                                            const std::string& instead) const {
  executor::PlanLimits limits = executor::limits_of(context_.transport->sizes());
  if (context_.multi_host()) limits.slice_bytes = kNetSlice;
  if (choice.slice > 0) limits.slice_bytes = choice.slice;
  TUTTI_ASSIGN(const std::shared_ptr<executor::Prepared> prepared,
               executor::prepare(plan, context_.rank, shape, limits, context_.streaming_above));
  prepared->algorithm = static_cast<std::uint32_t>(choice.algorithm - algorithms::table().data());
  prepared->reason = instead + choice.reason;
  return PreparedCall::Plan(prepared);
}

std::size_t CallCache::memory() const {
  std::size_t bytes = planner_->memory();
  for (const Set& set : sets_) {
    for (const auto& entry : set) {
      if (entry == nullptr) continue;
      for (const auto& plan : {entry->first, entry->if_plain, entry->if_in_place}) {
        if (plan) bytes += plan->memory();
      }
    }
  }
  return bytes;
}

}  // namespace tutti
