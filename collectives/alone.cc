#include "collectives/alone.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <list>
#include <memory>
#include <span>

#include "collectives/async_queue.h"
#include "collectives/device_copy.h"
#include "collectives/reduce/reduce.h"
#include "collectives/validate.h"
#include "device/memory_kind.h"

namespace tutti {

Status AloneCommunicator::run(const Call& call) {
  TUTTI_TRY(failure());
  TUTTI_TRY(validate(call, 0, 1, "rank 0"));
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
      return unsupported(
          "rank 0 is alone and called premul_sum on device memory; expected a factor of 1, or more ranks");
    }
    return copy_on_device(to, from, count * element, call.stream);
  }
  if (reduces(call.collective) && call.op == ReduceOp::premul_sum) {
    void* const destinations[] = {to};
    const void* const sources[] = {from};
    reduce::reduce({.type = call.type, .op = call.op, .factors = &call.factor}, destinations, sources, count, false);
  } else if (from != to) {
    std::memmove(to, from, count * element);
  }
  return {};
}

Status AloneCommunicator::run_group(std::span<const Transfer> transfers) {
  TUTTI_TRY(failure());
  TUTTI_TRY(validate(transfers, 1, "rank 0"));
  std::list<Transfer> receives;
  for (const Transfer& t : transfers) {
    if (!t.sending) receives.push_back(t);
  }
  if (2 * receives.size() != transfers.size()) {
    return invalid_argument(
        fmt::format("rank 0 is alone and groups {} sends to itself with {} receives; expected as many",
                    transfers.size() - receives.size(), receives.size()));
  }
  for (const Transfer& s : transfers) {
    if (!s.sending) continue;
    const auto r = std::find_if(receives.begin(), receives.end(), [&](const Transfer& t) { return t.tag == s.tag; });
    if (r == receives.end()) {
      return invalid_argument(
          fmt::format("rank 0 is alone and sends itself a message of tag {} that it does not receive", s.tag));
    }
    if (s.count != r->count || s.type != r->type) {
      return invalid_argument(fmt::format("rank 0 sends {} x {} to itself and receives {} x {}", s.count,
                                          name_of(s.type), r->count, name_of(r->type)));
    }
    if (s.count > 0 && device::any_on_device(s.buffer, r->buffer)) {
      TUTTI_TRY(copy_on_device(r->buffer, s.buffer, s.count * size_of(s.type), s.stream));
    } else if (s.count > 0) {
      std::memmove(r->buffer, s.buffer, s.count * size_of(s.type));
    }
    if (r->source != nullptr) *r->source = 0;
    receives.erase(r);
  }
  return {};
}

Result<std::shared_ptr<PendingWork>> AloneCommunicator::start(const Call& call) { return finished_work(run(call)); }

Result<std::shared_ptr<PendingWork>> AloneCommunicator::start_group(std::span<const Transfer> transfers) {
  return finished_work(run_group(transfers));
}

Result<std::shared_ptr<CommunicatorInterface>> AloneCommunicator::split(int color, int /*key*/) {
  if (color < 0) return std::shared_ptr<CommunicatorInterface>();
  return std::shared_ptr<CommunicatorInterface>(std::make_shared<AloneCommunicator>());
}

Result<std::shared_ptr<CommunicatorInterface>> AloneCommunicator::shrink() { return split(0, 0); }

Status AloneCommunicator::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

Status AloneCommunicator::set_timeout(std::chrono::milliseconds timeout) {
  return checked_timeout(timeout).status();  // nothing here waits
}

void AloneCommunicator::abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  failure_ = {Code::aborted, fmt::format("rank 0 aborted the communicator: {}", reason)};
}

std::string AloneCommunicator::flight_recorder_text() const {
  return fmt::format("rank 0 is alone; {} calls\n", calls_);
}

std::string AloneCommunicator::flight_recorder_json() const {
  // Nobody to wait for, so nothing to record but how many there were.
  return fmt::format(R"({{"ranks":[{{"rank":0,"name":"rank 0","calls":[],"calls_made":{}}}]}})", calls_);
}

}  // namespace tutti
