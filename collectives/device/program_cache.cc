#if TUTTI_HAS_CUDA

#include "collectives/device/program_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/options.h"
#include "collectives/calls/validate.h"
#include "collectives/planner/demand.h"
#include "collectives/planner/device_rules.h"

namespace tutti {

namespace {

// A block of 512 threads moves 8 KiB with one load each; with four in flight, 32 KiB.
constexpr std::size_t kExpressBytesOfBlock = std::size_t{8} << 10;
constexpr std::size_t kBytesOfBlock = std::size_t{32} << 10;
constexpr std::size_t kSliceOfBlock = std::size_t{128} << 10;
constexpr std::size_t kMostEntries = 256;

std::size_t end_of(std::span<const std::size_t> counts, std::span<const std::size_t> offsets) {
  std::size_t end = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > 0) end = std::max(end, offsets[i] + counts[i]);
  }
  return end;
}

}  // namespace

Result<std::unique_ptr<ProgramCache>> ProgramCache::create(const EngineSetup& setup,
                                                           executor::cuda::DeviceExecutor& executor) {
  std::string rules(planner::kDeviceRules);
  rules += options::text(Option::selection);
  TUTTI_ASSIGN(planner::Selection selection, planner::Selection::with_rules(rules));
  return std::unique_ptr<ProgramCache>(new ProgramCache(setup, executor, std::move(selection)));
}

ProgramCache::ProgramCache(const EngineSetup& setup, executor::cuda::DeviceExecutor& executor,
                           planner::Selection selection)
    : setup_(setup),
      size_(setup.config().size),
      executor_(executor),
      selection_(std::move(selection)),
      plans_(setup.config().size, setup.config().hosts) {}

Result<ProgramCache::Program> ProgramCache::p2p(std::span<const Transfer> transfers) {
  std::vector<std::byte> list =
      executor::cuda::make_p2p_list(transfers, setup_.segmented() ? 1 : transport::kP2pStrips);
  std::string key(reinterpret_cast<const char*>(list.data()), list.size());
  if (const auto found = p2p_.find(key); found != p2p_.end()) return found->second;
  if (executor_.idle()) drop_retired();
  if (p2p_.size() >= kMostEntries) retire_p2p();
  TUTTI_ASSIGN(Program uploaded, upload(std::move(list)));
  p2p_.emplace(std::move(key), uploaded);
  return uploaded;
}

void ProgramCache::retire_entries() {
  for (auto& [unused, old] : entries_) retired_.push_back(std::move(old));
  entries_.clear();
}

// No kernel uses these; but a group that is being made may.
void ProgramCache::drop_retired() {
  std::erase_if(retired_, [](const std::shared_ptr<const Entry>& entry) { return entry.use_count() == 1; });
}

void ProgramCache::retire_p2p() {
  for (auto& [unused, old] : p2p_) {
    auto entry = std::make_shared<Entry>();
    entry->first = std::move(old);
    retired_.push_back(std::move(entry));
  }
  p2p_.clear();
}

Result<std::shared_ptr<const ProgramCache::Entry>> ProgramCache::get(const KernelEngine::Request& request) {
  const Call& call = *request.call;
  if (request.uneven != nullptr) return prepare(request);  // serves these pieces only
  std::string wanted(request.algorithm.empty() ? request.preferred : request.algorithm);
  const Key key{call.collective,       call.type,        call.op, call.root, call.count, request.stride,
                request.deterministic, std::move(wanted)};
  const auto found = entries_.find(key);
  if (found != entries_.end()) return found->second;
  if (entries_.size() >= kMostEntries) {
    retire_entries();
  }
  TUTTI_ASSIGN(std::shared_ptr<const Entry> made, prepare(request));
  entries_.emplace(key, made);
  return made;
}

Result<std::shared_ptr<const ProgramCache::Entry>> ProgramCache::prepare(const KernelEngine::Request& request) {
  if (executor_.idle()) drop_retired();
  const Call& call = *request.call;
  auto entry = std::make_shared<Entry>();
  const std::size_t element = size_of(call.type);
  const plan::Placements placements = plan::placements_of(call.collective);
  const auto bytes_of = [&](plan::Placement placement) {
    if (placement != plan::Placement::blocks) return call.count * element;
    const std::size_t stride = request.stride != 0 ? request.stride : call.count;
    return (static_cast<std::size_t>(size_ - 1) * stride + call.count) * element;
  };
  entry->input_bytes = bytes_of(placements.input);
  entry->output_bytes = bytes_of(placements.output);
  if (request.uneven != nullptr) {
    entry->input_bytes = end_of(request.uneven->send_counts, request.uneven->send_offsets) * element;
    entry->output_bytes = end_of(request.uneven->recv_counts, request.uneven->recv_offsets) * element;
  }

  planner::Demand demand = planner::demand_of(call, size_, elements_of(call, size_) * element,
                                              {.deterministic = request.deterministic, .preferred = request.preferred});
  if (setup_.segmented()) {
    demand.plain = true;
    demand.buffers_open = false;
    demand.in_place = true;
  }
  bool opens = false;
  TUTTI_ASSIGN(entry->first, program_for(request, demand, &entry->explanation, &opens));
  entry->opens = opens;
  const algorithms::Algorithm* row = algorithms::find(call.collective, entry->explanation.algorithm);
  entry->algorithm = static_cast<std::uint32_t>(row - algorithms::table().data());
  if (opens) {
    bool unused = false;
    // Those that were asked for serve where they can.
    const std::string names = planner::names_or_auto(demand.algorithm);
    demand.algorithm = names;
    const planner::Demand whole = demand;
    demand.plain = true;
    demand.buffers_open = false;
    if (!setup_.all_open()) {
      TUTTI_ASSIGN(entry->if_plain, program_for(request, demand, nullptr, &unused));
    }
    demand = whole;
    if (!algorithms::table()[entry->algorithm].in_place) {
      demand.in_place = true;
      demand.buffers_open = false;  // a rank that is in place may be out of reach, too
      TUTTI_ASSIGN(entry->if_in_place, program_for(request, demand, nullptr, &unused));
    }
  }
  if (request.uneven != nullptr) retired_.push_back(entry);  // for this call only, but until it is done
  return std::shared_ptr<const Entry>(entry);
}

// How many blocks share a lane's work.
int ProgramCache::strips_for(const plan::Plan& plan, std::size_t bytes) const {
  const auto pieces = static_cast<std::size_t>(std::max(plan.pieces, 1));
  const bool small = !setup_.segmented() && bytes / pieces <= setup_.sizes().express_bytes;
  const std::size_t wanted =
      largest_share(std::max<std::size_t>(bytes, 1), small ? kExpressBytesOfBlock : kBytesOfBlock);
  const int lanes = static_cast<int>(plan.of_rank.front().lanes.size());
  return std::clamp(static_cast<int>(std::min<std::size_t>(wanted, KernelEngine::kMostBlocks)), 1,
                    std::max(1, setup_.blocks() / lanes));
}

Result<ProgramCache::Program> ProgramCache::program_for(const KernelEngine::Request& request,
                                                        const planner::Demand& demand, Explanation* explanation,
                                                        bool* opens) {
  const Call& call = *request.call;
  TUTTI_ASSIGN(const planner::Choice choice, selection_.choose(demand));
  const auto plan = plans_.get(*choice.algorithm, call.collective, call.root);
  const executor::Shape shape{call.collective, call.type, call.op, call.root, call.count, request.stride};
  const int strips = strips_for(*plan, demand.bytes);
  TUTTI_ASSIGN(const auto prepared, executor::cuda::prepare_for_device(
                                        plan, setup_.config().rank, shape,
                                        executor::cuda::limits_of(setup_.sizes(), strips,
                                                                  kSliceOfBlock * static_cast<std::size_t>(strips))));
  *opens = prepared->opens;
  TUTTI_ASSIGN(auto program, upload(executor::cuda::flatten(*prepared, request.uneven)));
  if (explanation != nullptr) {
    const char* how = setup_.segmented()  ? "kernels cut at their waits, since processes share a GPU"
                      : prepared->express ? "one kernel, flags beside the data"
                                          : "one kernel";
    *explanation = {plan->algorithm, static_cast<int>(prepared->lanes.size()) * strips, prepared->rounds,
                    fmt::format("{}; {} of {} block(s)", choice.reason, how, program->blocks())};
  }
  return program;
}

Result<ProgramCache::Program> ProgramCache::upload(std::vector<std::byte> flat) {
  auto program = executor_.upload(flat);
  if (program.ok() || program.status().code() != Code::memory_limit) return program;
  // The pool is full: let go of all that no kernel has, once none runs.
  retire_entries();
  retire_p2p();
  for (const std::int64_t since = now_ns(); !executor_.idle() && now_ns() - since < timeout_ns_.load();) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  if (!executor_.idle()) return program;
  drop_retired();
  return executor_.upload(std::move(flat));
}

}  // namespace tutti

#endif  // TUTTI_HAS_CUDA
