#include "collectives/communicator/self_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>

#include "collectives/calls/async_queue.h"
#include "collectives/calls/rank_names.h"
#include "collectives/calls/validate.h"
#include "collectives/device/device_copy.h"
#include "collectives/planner/selection.h"
#include "collectives/reduce/reduce.h"
#include "device/memory_kind.h"

namespace tutti {
namespace {

bool is_float(DataType type) {
  switch (type) {
    case DataType::f16:
    case DataType::bf16:
    case DataType::f32:
    case DataType::f64:
    case DataType::f8e4m3:
    case DataType::f8e5m2: return true;
    default: return false;
  }
}

std::string own_name(const Options& options, const std::string& where) {
  if (options.name.empty() && options.job_ranks.empty()) return "rank 0";
  return rank_name_in_group(0, options.name, job_rank_of(options, 0), where);
}

}  // namespace

SelfCommunicator::SelfCommunicator(const Options& options, std::string where)
    : options_(options),
      where_(std::move(where)),
      name_(own_name(options_, where_)),
      messages_(options_.timeout, name_) {}

Status SelfCommunicator::run(const Call& call) {
  TUTTI_TRY(failure());
  TUTTI_TRY(validate(call, 0, 1, name_));
  if (!call.algorithm.empty()) TUTTI_TRY(planner::check_names(call.collective, call.algorithm));
  ++calls_;
  std::size_t count = call.count;
  const void* from = call.send;
  void* to = call.recv;
  const std::size_t element = size_of(call.type);
  if (call.collective == Collective::all_to_allv) {
    count = call.send_counts[0];
    from = static_cast<const std::byte*>(call.send) + call.send_offsets[0] * element;
    to = static_cast<std::byte*>(call.recv) + call.recv_offsets[0] * element;
  }
  if (call.collective == Collective::barrier || count == 0) return {};
  if (device::any_on_device(from, to)) {
    if (reduces(call.collective) && call.op == ReduceOp::premul_sum && call.factor != 1.0) {
      return unsupported(name_ +
                         " is alone and called premul_sum on device memory; expected a factor of 1, or more ranks");
    }
    return copy_on_device(to, from, count * element, call.stream);
  }
  // Of floats also where it is a copy: NaNs have one pattern (reduce.h), as with more ranks.
  if (reduces(call.collective) && (call.op == ReduceOp::premul_sum || is_float(call.type))) {
    const double* const factor = call.op == ReduceOp::premul_sum ? &call.factor : nullptr;
    void* const destinations[] = {to};
    const void* const sources[] = {from};
    reduce::reduce({.type = call.type, .op = call.op, .factors = factor}, destinations, sources, count, false);
  } else if (from != to) {
    std::memmove(to, from, count * element);
  }
  return {};
}

Status SelfCommunicator::run_group(std::span<const Transfer> transfers) {
  TUTTI_TRY(failure());
  TUTTI_TRY(validate(transfers, 1, name_));
  TUTTI_TRY(check_apart(transfers, 0, /*on_device=*/false, name_));
  return messages_.transfer(transfers);
}

Result<std::shared_ptr<PendingWork>> SelfCommunicator::start(const Call& call) { return finished_work(run(call)); }

Result<std::shared_ptr<PendingWork>> SelfCommunicator::start_group(std::span<const Transfer> transfers) {
  TUTTI_TRY(failure());
  TUTTI_TRY(validate(transfers, 1, name_));
  TUTTI_TRY(check_apart(transfers, 0, /*on_device=*/false, name_));
  return messages_.start(transfers);
}

Result<std::shared_ptr<CommunicatorInterface>> SelfCommunicator::split(int color, int /*key*/,
                                                                       const std::string& name) {
  TUTTI_TRY(check_group_name(name, name_));
  if (color < 0) return std::shared_ptr<CommunicatorInterface>();
  Options options = options_;
  if (!name.empty()) options.name = name;  // else it is a copy
  return std::shared_ptr<CommunicatorInterface>(std::make_shared<SelfCommunicator>(options, where_));
}

Result<std::shared_ptr<CommunicatorInterface>> SelfCommunicator::shrink() { return split(0, 0, {}); }

Status SelfCommunicator::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

Status SelfCommunicator::set_timeout(std::chrono::milliseconds timeout) {
  TUTTI_ASSIGN(const std::chrono::milliseconds checked, checked_timeout(timeout));
  messages_.set_timeout(checked);
  return {};
}

void SelfCommunicator::abort(const std::string& reason) {
  const Status aborted{Code::aborted, fmt::format("{} aborted the communicator: {}", name_, reason)};
  {
    const std::lock_guard lock(mutex_);
    failure_ = aborted;
  }
  messages_.fail(aborted);
}

std::string SelfCommunicator::flight_recorder_text() const {
  return fmt::format("{} is alone; {} calls\n", name_, calls_);
}

std::string SelfCommunicator::flight_recorder_json() const {
  // No call waits for a peer, so their number is all there is to record.
  return fmt::format(R"({{"ranks":[{{"rank":0,"name":{},"calls":[],"calls_made":{}}}]}})", nlohmann::json(name_).dump(),
                     calls_);
}

}  // namespace tutti
