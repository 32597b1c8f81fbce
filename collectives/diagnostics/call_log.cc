#include "collectives/diagnostics/call_log.h"

#include <fmt/format.h>

#include <utility>

#include "base/log.h"
#include "base/options.h"

namespace tutti {

CallLog::CallLog(executor::FileOwner owner) : explain_(options::flag(Option::explain)), world_rank_(owner.rank) {
  const std::string& path = options::text(Option::trace);
  if (path.empty()) return;
  const std::string file = executor::rank_path(path, owner);
  trace_ = std::make_unique<executor::StepTrace>(file, std::move(owner));
}

Explanation CallLog::last() const {
  switch (path_) {
    case Path::none: return {};
    case Path::kernels: return kernels_ != nullptr ? *kernels_ : Explanation{};
    case Path::gdr:
      return {"gdr", lanes_, fragments_,
              fmt::format("from GPU to GPU by the NIC, in {} fragment(s){}", fragments_, how_)};
    case Path::host:
    case Path::staged: break;
  }
  Explanation explanation{plan_->plan->algorithm, static_cast<int>(plan_->lanes.size()), plan_->rounds, plan_->reason};
  if (path_ == Path::staged) {
    explanation.reason += fmt::format("; through pinned memory, in {} fragment(s){}", fragments_, how_);
  }
  return explanation;
}

void CallLog::report(const executor::CallSnapshot& call, const std::string& algorithm, const std::string& how) const {
  if (trace_) trace_->call(call, algorithm);
  if (!explain_) return;
  // Printed at any log level, since it was asked for; with the rank, since ranks may be threads.
  log::set_thread_rank(world_rank_);
  const char* kind = call.collective == Collective::send_recv ? "transfer" : "call";
  log::error("{} {}: {}: {} bytes by {}", kind, call.sequence, call.text(), call.bytes, how);
  log::set_thread_rank(-1);
}

void CallLog::report(const executor::CallSnapshot& call, const executor::Prepared& plan) const {
  report(call, plan.plan->algorithm,
         fmt::format("{}, {} lane(s), {} round(s), {}", plan.plan->algorithm, plan.lanes.size(), plan.rounds,
                     plan.reason));
}

}  // namespace tutti
