#include "collectives/calls/control_gather.h"

namespace tutti {

Call ControlGather::call_of(const Words& mine, Words& all) const {
  all.resize(mine.size() * static_cast<std::size_t>(context_.size()));
  Call call;
  call.collective = Collective::all_gather;
  call.send = mine.data();
  call.recv = all.data();
  call.count = mine.size();
  call.type = DataType::u64;
  return call;
}

Result<Words> ControlGather::gather(const executor::CallIdentity& as, const Words& mine) {
  if (context_.health.failed()) return context_.fail(context_.health.status());
  Words all;
  TUTTI_TRY(host_.run_as(as, call_of(mine, all)));
  return all;
}

Status ControlGather::run(const Call& call) {
  TUTTI_TRY(context_.usable());
  context_.use_callers_thread();
  if (context_.health.failed()) return context_.fail(context_.health.status());
  TUTTI_TRY(host_.bound_run_ahead());
  return host_.run(call);
}

Result<Words> ControlGather::gather(const Words& mine) {
  Words all;
  TUTTI_TRY(run(call_of(mine, all)));
  return all;
}

Status ControlGather::barrier() { return run({.collective = Collective::barrier}); }

std::string ControlGather::refusal(const Words& all, std::size_t width, const Status& mine) const {
  for (int r = 0; r < context_.size(); ++r) {
    if (all[static_cast<std::size_t>(r) * width] != 0) continue;
    return mine.ok() ? context_.name_of(r) + " has none" : mine.message();
  }
  return {};
}

}  // namespace tutti
