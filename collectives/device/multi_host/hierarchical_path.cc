#include "collectives/device/multi_host/hierarchical_path.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"
#include "collectives/calls/call_identity.h"
#include "collectives/calls/validate.h"
#include "collectives/job/planner_factory.h"

namespace tutti {

namespace {

// Two kernels for each fragment, each of which meets the host's other ranks, against what crosses PCIe less: about 20
// us, in which that carries 512 KiB. A guess, not measured.
constexpr std::size_t kLeastHierarchicalBytes = std::size_t{512} << 10;

}  // namespace

bool HierarchicalPath::wants(const Call& call) const {
  const CommContext& context = parts_.context;
  return refusal_.empty() && HierarchicalCall::serves(call.collective) && !is_deterministic(call, context.options) &&
         requested_algorithm(call, context.options).empty() &&
         elements_of(call, context.size()) * size_of(call.type) >= kLeastHierarchicalBytes;
}

Result<std::unique_ptr<KernelEngine>> HierarchicalPath::make_engine(int device, const executor::CallIdentity& as,
                                                                    int& gathers) {
  CommContext& context = parts_.context;
  TUTTI_ASSIGN(const std::size_t slot, pipeline_.slot_bytes());
  const std::vector<int>& in_host = layout_->intra_host();
  KernelEngine::Config config;
  config.rank = layout_->local_rank();
  config.size = layout_->local_size();
  config.device = device;
  config.host = context.transport.get();
  config.in_host = in_host;
  config.health = &context.health;
  config.name = [&context, in_host](int local) { return context.name_of(in_host[static_cast<std::size_t>(local)]); };
  config.gather = [&](const Words& mine) -> Result<Words> {
    TUTTI_CHECK(++gathers <= KernelEngine::kGathers);
    Words words(KernelEngine::kGatherWords);
    std::copy(mine.begin(), mine.end(), words.begin());
    TUTTI_ASSIGN(const Words all, parts_.gather.gather(as, words));
    Words chosen;
    for (const int rank : in_host) {
      const auto first = all.begin() + rank * static_cast<std::ptrdiff_t>(words.size());
      chosen.insert(chosen.end(), first, first + static_cast<std::ptrdiff_t>(mine.size()));
    }
    return chosen;
  };
  config.hosts.assign(in_host.size(), 0);
  config.processes_of_gpu = context.job->local_processes();
  config.options = context.options;
  if (context.options.memory_limit != 0) config.options.memory_limit -= slot;  // for on_device()
  config.waiting_only = true;
  TUTTI_TRY(pipeline_.open(device));
  TUTTI_TRY(pipeline_.staging().on_device().status());
  return KernelEngine::create(std::move(config));
}

Result<std::unique_ptr<CallPreparer>> HierarchicalPath::make_cross_host_preparer() const {
  const CommContext& context = parts_.context;
  std::vector<int> world_ranks;
  for (const int rank : layout_->cross_host())
    world_ranks.push_back(context.world_ranks[static_cast<std::size_t>(rank)]);
  TUTTI_ASSIGN(std::unique_ptr<planner::Planner> planner,
               make_planner(*context.job, world_ranks, context.transport->sizes()));
  return std::make_unique<CallPreparer>(context, std::move(planner), layout_->cross_host());
}

// Whatever becomes of it on a host, all of them make as many calls for it.
Result<bool> HierarchicalPath::open(int device, const executor::CallIdentity& as) {
  if (engine_ || !refusal_.empty()) return engine_ != nullptr;
  CommContext& context = parts_.context;
  const std::vector<int> host_of = context.job->host_of_member();
  std::vector<int> hosts;
  for (const int world_rank : context.world_ranks) hosts.push_back(host_of[static_cast<std::size_t>(world_rank)]);
  const char* why_not = "";
  layout_ = HostLayout::of(hosts, context.rank, &why_not);
  if (!layout_) {
    refusal_ = why_not;
    return false;
  }
  context.use_callers_thread();
  int gathers = 0;
  Result<std::unique_ptr<KernelEngine>> engine = make_engine(device, as, gathers);
  Result<std::unique_ptr<CallPreparer>> cross_host = make_cross_host_preparer();
  const Status mine = engine.ok() ? cross_host.status() : engine.status();
  while (gathers++ < KernelEngine::kGathers) {
    TUTTI_TRY(parts_.gather.gather(as, Words(KernelEngine::kGatherWords)).status());
  }
  TUTTI_ASSIGN(const Words well, parts_.gather.gather(as, Words{mine.ok() ? std::uint64_t{1} : 0}));
  refusal_ = parts_.gather.refusal(well, 1, mine);
  if (!refusal_.empty()) return false;
  engine_ = engine.take();
  cross_host_ = cross_host.take();
  if (context.options.memory_limit != 0) gdr_.forbid();
  return true;
}

Status HierarchicalPath::run(std::span<const Call> calls) {
  const Call& call = calls.front();
  TUTTI_ASSIGN(const std::size_t bytes, pipeline_.slot_bytes());
  TUTTI_ASSIGN(std::byte* const share, pipeline_.staging().on_device());
  const auto hierarchical = std::make_shared<const HierarchicalCall>(call, *layout_, share, bytes);
  const executor::CallIdentity as = identity_on_device(call, parts_.context.options, hierarchical->part());
  bool by_nic = gdr_.wants_among(call, layout_->hosts());
  if (by_nic) {
    TUTTI_ASSIGN(by_nic, gdr_.open(engine_->device(), as));
  }
  const std::uint64_t first = pipeline_.staging().begin(hierarchical->fragments());
  const std::uint64_t first_slot = by_nic ? gdr_.reserve(hierarchical->fragments()) : 0;
  const auto made = [this, hierarchical, first, by_nic, first_slot](std::size_t i) {
    HostStaging& staging = pipeline_.staging();
    HierarchicalCall::Fragment now = hierarchical->fragment(i, staging.input(first + i), staging.output(first + i));
    if (!by_nic || !now.cross_host) return now;
    return hierarchical->fragment(i, gdr_.input(first_slot + i), gdr_.output(first_slot + i));
  };
  std::vector<HostStaging::Fragment> fragments;
  for (std::size_t i = 0; i < hierarchical->fragments(); ++i) {
    HierarchicalCall::Fragment now = made(i);
    HostStaging::Fragment& put = fragments.emplace_back(std::move(now.copies));
    if (!now.before.empty()) put.before = [this, &as, kernels = now.before] { return launch(kernels, as); };
    if (!now.after.empty()) put.after = [this, &as, kernels = now.after] { return launch(kernels, as); };
  }
  return pipeline_.enqueue(first, fragments, call.stream, [this, hierarchical, as, first, by_nic, first_slot, made] {
    const auto one = [&](std::size_t i) {
      const HierarchicalCall::Fragment now = made(i);
      if (!now.cross_host) return parts_.host.run_as(as, now.on_host);
      if (by_nic) return gdr_.run_fragment(as, now.on_host, layout_->cross_host(), first_slot + i);
      return parts_.host.run_as(as, now.on_host, *cross_host_);
    };
    return pipeline_.run_fragments(first, hierarchical->fragments(), one,
                                   ", of this rank's share; kernels inside each host");
  });
}

Status HierarchicalPath::launch(std::span<const HierarchicalCall::IntraHostCall> calls,
                                const executor::CallIdentity& as) {
  std::vector<KernelEngine::Request> requests;
  for (const HierarchicalCall::IntraHostCall& local : calls) {
    KernelEngine::Request& request = requests.emplace_back();
    request.call = &local.call;
    request.identity = as;
    request.stride = local.stride;
    request.in_place =
        is_in_place(local.call, layout_->local_rank(), local.stride != 0 ? local.stride : local.call.count);
  }
  return engine_->run(requests);
}

void HierarchicalPath::add_to(MemoryReport& report) const {
  if (engine_) report.scratch += engine_->memory();
  if (cross_host_) report.plans += cross_host_->planner().memory();
}

void HierarchicalPath::set_timeout(std::chrono::nanoseconds timeout) {
  if (engine_) engine_->set_timeout(timeout);
}

}  // namespace tutti
