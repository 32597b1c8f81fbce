#include "collectives/device/kernel_path.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "collectives/calls/call_identity.h"
#include "collectives/calls/validate.h"

namespace tutti {

Status checked_launch(CommContext& context, const Status& status) {
  if (status.ok()) return {};
  const bool harmless = status.code() == Code::invalid_argument || status.code() == Code::unsupported ||
                        status.code() == Code::memory_limit;
  return harmless && !context.health.failed() ? status : context.fail(status);
}

bool KernelPath::wants(const Call& /*call*/) const { return !parts_.context.multi_host(); }

Result<bool> KernelPath::open(int device, const executor::CallIdentity& as) {
  if (engine_) return true;
  CommContext& context = parts_.context;
  context.use_callers_thread();
  TUTTI_ASSIGN(const Words staged, parts_.gather.gather(as, Words{staged_messages_ ? std::uint64_t{1} : 0}));
  staged_messages_ = std::count(staged.begin(), staged.end(), 1) > 0;
  KernelEngine::Config config;
  config.rank = context.rank;
  config.size = context.size();
  config.device = device;
  config.host = context.transport.get();
  config.health = &context.health;
  config.name = [&context](int rank) { return context.name_of(rank); };
  config.gather = [this, as](const Words& mine) { return parts_.gather.gather(as, mine); };
  config.hosts = parts_.host.planner().hosts();
  config.processes_of_gpu = context.job->local_processes();
  config.options = context.options;
  TUTTI_ASSIGN(engine_, KernelEngine::create(std::move(config)));
  return true;
}

Status KernelPath::run_uneven(const Call& data, int device) {
  const executor::UnevenPieces uneven = parts_.counts.pieces_of(data);
  TUTTI_TRY(open(device, identity_on_device(data, parts_.context.options, 0)).status());
  return launch({&data, 1}, &uneven);
}

bool KernelPath::takes_p2p() {
  if (parts_.context.multi_host()) return false;
  if (!staged_messages_) parts_.context.queue.wait_idle();
  if (!engine_) staged_messages_ = true;
  return !staged_messages_;
}

Status KernelPath::run_p2p(std::span<const Transfer> transfers, int /*device*/) {
  CommContext& context = parts_.context;
  if (context.health.failed()) return context.fail(context.health.status());
  return checked_launch(context, engine_->run_group(transfers));
}

KernelEngine::Request KernelPath::request_of(const Call& call) const {
  const Options& options = parts_.context.options;
  KernelEngine::Request request;
  request.call = &call;
  request.deterministic = is_deterministic(call, options);
  request.identity = identity_of(call, options);
  request.algorithm = call.algorithm;
  request.preferred = options.algorithm;
  request.in_place = is_in_place(call, parts_.context.rank);
  return request;
}

Status KernelPath::launch(std::span<const Call> calls, const executor::UnevenPieces* uneven) {
  std::vector<KernelEngine::Request> requests;
  for (const Call& call : calls) requests.push_back(request_of(call));
  requests.front().uneven = uneven;
  const Status status = engine_->run(requests);
  const std::span<const Explanation> explanations = engine_->explanations();
  parts_.log.record_kernels(explanations.empty() ? nullptr : &explanations.back());
  if (parts_.log.is_watched() && status.ok()) report(calls);
  return checked_launch(parts_.context, status);
}

void KernelPath::report(std::span<const Call> calls) const {
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const Call& call = calls[i];
    executor::CallSnapshot made;
    made.sequence = engine_->calls() - calls.size() + i + 1;
    made.collective = call.collective;
    made.type = call.type;
    made.op = call.op;
    made.deterministic = is_deterministic(call, parts_.context.options);
    made.root = call.root;
    made.count = call.count;
    made.bytes = elements_of(call, parts_.context.size()) * size_of(call.type);
    const Explanation& how = engine_->explanations()[i];
    parts_.log.report(
        made, how.algorithm,
        fmt::format("{}, {} round(s), on GPU {}, {}", how.algorithm, how.rounds, engine_->device(), how.reason));
  }
}

void KernelPath::add_to(MemoryReport& report) const {
  if (engine_) report.scratch += engine_->memory();
}

void KernelPath::set_timeout(std::chrono::nanoseconds timeout) {
  if (engine_) engine_->set_timeout(timeout);
}

}  // namespace tutti
