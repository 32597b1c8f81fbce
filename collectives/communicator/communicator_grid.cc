// The communicator's calls on device memory where hosts have as many ranks each, and those of a host reach each other
// by kernels: kernels inside each host, and only the host's share over the network (grid_call.h).
//
//   stream   k 0, in 0 | k 1, in 1 | k 2, in 2 | k 3, in 3 | until 0 is done, out 0, k 0' | k 4, in 4 | until 1 is ...
//   proxy              | turn 0    | turn 1    | turn 2 ...
//
// k: the kernels before a turn, k': those after it. All ranks of a host put them into their streams in this order, so
// none waits for one that stands behind what it waits for itself.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "collectives/calls/validate.h"
#include "collectives/communicator/communicator.h"
#include "collectives/job/planner_factory.h"
#include "collectives/plan/rename.h"

namespace tutti {

namespace {

// Two kernels for each turn, each of which meets the host's other ranks, against what crosses PCIe less: about 20 us,
// in which that carries 512 KiB. A guess until somebody measures it.
constexpr std::size_t kLeastGridBytes = std::size_t{512} << 10;

}  // namespace

bool TuttiCommunicator::wants_grid(const Call& call) const {
  return grid_open_ != Opened::refused && HierarchicalCall::serves(call.collective) && !call.deterministic &&
         !options_.deterministic && call.algorithm.empty() && options_.algorithm.empty() &&
         elements_of(call, size()) * size_of(call.type) >= kLeastGridBytes;
}

Result<std::unique_ptr<KernelEngine>> TuttiCommunicator::make_row(int device, const executor::CallIdentity& identity,
                                                                  int& gathers) {
  TUTTI_ASSIGN(const std::size_t slot, slot_bytes());
  const std::vector<int>& row = grid_->row();
  KernelEngine::Config config;
  config.rank = grid_->place();
  config.size = grid_->places();
  config.device = device;
  config.host = transport_.get();
  config.in_host = row;
  config.health = &health_;
  config.name = [this, row](int place) { return who(row[static_cast<std::size_t>(place)]); };
  config.gather = [&](std::span<const std::uint64_t> mine) -> Result<Words> {
    TUTTI_CHECK(++gathers <= KernelEngine::kGathers);
    Words words(KernelEngine::kGatherWords);
    std::copy(mine.begin(), mine.end(), words.begin());
    TUTTI_ASSIGN(const Words all, gather_as(identity, words));
    Words chosen;
    for (const int rank : row) {
      const auto first = all.begin() + rank * static_cast<std::ptrdiff_t>(words.size());
      chosen.insert(chosen.end(), first, first + static_cast<std::ptrdiff_t>(mine.size()));
    }
    return chosen;
  };
  config.hosts.assign(row.size(), 0);
  config.processes_of_gpu = job_->local_processes();
  config.options = options_;
  if (options_.memory_limit != 0) config.options.memory_limit -= slot;  // for on_device()
  config.waiting_only = true;
  TUTTI_TRY(need_staging(device));
  TUTTI_TRY(staging_->on_device().status());
  return KernelEngine::create(std::move(config));
}

// Whatever becomes of it on a host, all of them make as many calls for it.
Result<bool> TuttiCommunicator::open_grid(int device, const executor::CallIdentity& identity) {
  if (grid_open_ != Opened::untried) return grid_open_ == Opened::yes;
  const char* why_not = "";
  std::vector<int> hosts;
  for (const int member : members_) hosts.push_back(job_->host_of_member()[static_cast<std::size_t>(member)]);
  grid_ = HostLayout::of(hosts, rank_, &why_not);
  if (!grid_) {
    grid_open_ = Opened::refused;
    grid_refused_ = why_not;
    return false;
  }
  wait_for_queue();
  waiter_.set_background(false);
  int gathers = 0;
  Result<std::unique_ptr<KernelEngine>> row = make_row(device, identity, gathers);
  std::vector<int> column;
  for (const int rank : grid_->column()) column.push_back(members_[static_cast<std::size_t>(rank)]);
  Result<std::unique_ptr<planner::Planner>> planner = make_planner(*job_, column, transport_->sizes());
  const Status mine = row.ok() ? planner.status() : row.status();
  while (gathers++ < KernelEngine::kGathers) {
    TUTTI_TRY(gather_as(identity, Words(KernelEngine::kGatherWords)).status());
  }
  TUTTI_ASSIGN(const Words well, gather_as(identity, Words{mine.ok() ? std::uint64_t{1} : 0}));
  const auto ill = std::find(well.begin(), well.end(), 0);
  if (ill == well.end()) {
    engine_ = row.take();
    column_planner_ = planner.take();
    grid_open_ = Opened::yes;
    return true;
  }
  grid_open_ = Opened::refused;
  grid_refused_ = mine.ok() ? who(static_cast<int>(ill - well.begin())) + " has none" : mine.message();
  return false;
}

Status TuttiCommunicator::run_on_grid(const Call& call) {
  TUTTI_ASSIGN(const std::size_t bytes, slot_bytes());
  TUTTI_ASSIGN(std::byte* const share, staging_->on_device());
  const auto grid_call = std::make_shared<const HierarchicalCall>(call, *grid_, share, bytes);
  const executor::CallIdentity identity = identity_on_device(call, grid_call->part());
  bool direct = wants_direct(call, grid_->hosts());
  if (direct) {
    TUTTI_ASSIGN(direct, open_gdr(identity));
  }
  const std::uint64_t first = staging_->begin(grid_call->fragments());
  const std::uint64_t first_direct = direct_turns_;
  if (direct) direct_turns_ += grid_call->fragments();
  const auto made = [this, grid_call, first, direct, first_direct](std::size_t turn) {
    HierarchicalCall::Fragment now =
        grid_call->fragment(turn, staging_->input(first + turn), staging_->output(first + turn));
    if (!direct || !now.across) return now;
    return grid_call->fragment(turn, gdr_input(first_direct + turn), gdr_output(first_direct + turn));
  };
  std::vector<HostStaging::Fragment> turns;
  for (std::size_t turn = 0; turn < grid_call->fragments(); ++turn) {
    HierarchicalCall::Fragment now = made(turn);
    HostStaging::Fragment& put = turns.emplace_back(std::move(now.copies));
    if (!now.before.empty()) put.before = [this, &identity, calls = now.before] { return run_row(calls, identity); };
    if (!now.after.empty()) put.after = [this, &identity, calls = now.after] { return run_row(calls, identity); };
  }
  return start_turns(first, turns, call.stream, [this, grid_call, first, direct, first_direct, made] {
    const Status status = carry_out_turns(first, grid_call->fragments(), [&](std::size_t turn) {
      const HierarchicalCall::Fragment now = made(turn);
      if (direct && now.across) {
        return carry_out_direct(grid_call->whole(), now.on_host, grid_->column(), first_direct + turn,
                                grid_call->part());
      }
      return carry_out_turn(grid_call->whole(), now.on_host, now.across, grid_call->part());
    });
    last_way_ = ", of this rank's share; kernels inside each host";
    return status;
  });
}

Status TuttiCommunicator::run_row(std::span<const HierarchicalCall::IntraHostCall> calls,
                                  const executor::CallIdentity& identity) {
  std::vector<KernelEngine::Request> requests;
  for (const HierarchicalCall::IntraHostCall& near : calls) {
    KernelEngine::Request& request = requests.emplace_back();
    request.call = &near.call;
    request.identity = identity;
    request.stride = near.stride;
    request.in_place = is_in_place(near.call, grid_->place(), near.stride != 0 ? near.stride : near.call.count);
  }
  return engine_->run(requests);
}

Result<std::unique_ptr<TuttiCommunicator::Ready>> TuttiCommunicator::make_ready_across(const Call& call) {
  const std::vector<int> column = grid_->column();
  const int hosts = grid_->hosts();
  auto ready = std::make_unique<Ready>();
  ready->shape = {call.collective, call.type, call.op, call.root, call.count};
  ready->across = true;
  ready->bytes = elements_of(call, hosts) * size_of(call.type);
  planner::Demand demand;
  demand.collective = call.collective;
  demand.ranks = hosts;
  demand.bytes = ready->bytes;
  demand.load_store = false;
  demand.buffers_open = false;
  demand.lanes = kLanes;
  TUTTI_ASSIGN(const planner::Choice choice, column_planner_->choose(demand, call.root));
  const auto plan = std::make_shared<const plan::Plan>(plan::embedded(*choice.plan, column, size()));
  TUTTI_ASSIGN(const std::shared_ptr<executor::Prepared> prepared,
               executor::prepare(plan, rank_, ready->shape, limits_for(choice), streaming_above_));
  prepared->algorithm = static_cast<std::uint32_t>(choice.algorithm - algorithms::table().data());
  prepared->reason = choice.reason;
  ready->first = prepared;
  ready->announcement.algorithm = prepared->algorithm;
  ready->announcement.bytes = ready->bytes;
  return ready;
}

}  // namespace tutti
