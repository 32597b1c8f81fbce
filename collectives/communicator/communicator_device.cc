// The communicator's calls on device memory: which half serves a call, and how the GPU half comes to be.

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "collectives/calls/validate.h"
#include "collectives/communicator/communicator.h"
#include "collectives/executor/memory_kind_check.h"
#include "device/memory_kind.h"

namespace tutti {

bool TuttiCommunicator::is_in_place(const Call& call, int rank, std::size_t stride) {
  const auto* send = static_cast<const std::byte*>(call.send);
  const auto* recv = static_cast<const std::byte*>(call.recv);
  const std::size_t block = static_cast<std::size_t>(rank) * stride * size_of(call.type);
  switch (call.collective) {
    case Collective::all_gather:
    case Collective::gather: return recv != nullptr && send == recv + block;
    case Collective::reduce_scatter:
    case Collective::scatter: return send != nullptr && recv == send + block;
    default: return send == recv;
  }
}

Result<int> TuttiCommunicator::device_of(const Call& call) const {
  const device::MemoryKind send = call.send == nullptr ? device::MemoryKind{} : device::kind_of(call.send);
  const device::MemoryKind recv = call.recv == nullptr ? device::MemoryKind{} : device::kind_of(call.recv);
  if (!send.on_device() && !recv.on_device()) return -1;
  if (send.on_device() && recv.on_device() ? send.device != recv.device
                                           : call.send != nullptr && call.recv != nullptr) {
    return invalid_argument(fmt::format("{} called {} with send in {} and recv in {}; expected both in the same memory",
                                        own_name_, name_of(call.collective), device::print(send), device::print(recv)));
  }
  const int device = send.on_device() ? send.device : recv.device;
  if (device_in_use() >= 0 && device != device_in_use()) {
    return invalid_argument(fmt::format("{} called {} on memory of GPU {}; its communicator is on GPU {}", own_name_,
                                        name_of(call.collective), device, device_in_use()));
  }
  return device;
}

int TuttiCommunicator::device_in_use() const {
  return engine_ ? engine_->device() : staging_ ? staging_->device() : -1;
}

Result<int> TuttiCommunicator::check_on_device(std::span<const Transfer> transfers) const {
  int device = -1;
  bool host = false;
  for (const Transfer& transfer : transfers) {
    const device::MemoryKind kind =
        transfer.buffer == nullptr ? device::MemoryKind{} : device::kind_of(transfer.buffer);
    if (!kind.on_device()) {
      host = host || transfer.buffer != nullptr;
      continue;
    }
    const char* name = transfer.sending ? "send" : "recv";
    if (device >= 0 && kind.device != device) {
      return invalid_argument(fmt::format("{} groups messages on memory of GPU {} and of GPU {}; expected one GPU",
                                          own_name_, device, kind.device));
    }
    device = kind.device;
    if (transfer.tag != 0 || (!transfer.sending && transfer.peer == kAnySource)) {
      return invalid_argument(
          fmt::format("{} called {} on {} with {}; expected messages between two ranks in their "
                      "order, without tags",
                      own_name_, name, device::print(kind),
                      transfer.tag != 0 ? fmt::format("tag {}", transfer.tag) : std::string("any source")));
    }
    if (transfer.stream != transfers.front().stream) {
      return invalid_argument(fmt::format("{} groups messages on several streams; expected one", own_name_));
    }
  }
  if (host) {
    return invalid_argument(
        fmt::format("{} groups messages on host memory and on GPU {}; expected one of the two", own_name_, device));
  }
  if (device_in_use() >= 0 && device != device_in_use()) {
    return invalid_argument(fmt::format("{} called send or recv on memory of GPU {}; its communicator is on GPU {}",
                                        own_name_, device, device_in_use()));
  }
  return device;
}

Status TuttiCommunicator::run_group_on_device(std::span<const Transfer> transfers) {
  if (far_ || messages_staged_.load()) return run_group_staged(transfers);
  queue_.wait_idle();
  if (!engine_) {
    messages_staged_.store(true);
    return run_group_staged(transfers);
  }
  TUTTI_TRY(check_on_device(transfers).status());
  if (health_.failed()) return failed(health_.status());
  return put_on_device(engine_->run_group(transfers));
}

// Some kinds of error are found before anything is in a stream; after others, ranks wait for this one.
Status TuttiCommunicator::put_on_device(const Status& status) {
  if (status.ok()) return {};
  const bool harmless = status.code() == Code::invalid_argument || status.code() == Code::unsupported ||
                        status.code() == Code::memory_limit;
  return harmless && !health_.failed() ? status : failed(status);
}

// A message that one rank has sent through the host before this must not be awaited from a kernel behind it: where any
// rank has done so, all go on like that.
Status TuttiCommunicator::need_device_half(int device, const executor::CallIdentity& identity) {
  if (engine_) return {};
  TUTTI_ASSIGN(const Words staged, gather_as(identity, Words{messages_staged_.load() ? std::uint64_t{1} : 0}));
  messages_staged_.store(std::count(staged.begin(), staged.end(), 1) > 0);
  KernelEngine::Config config;
  config.rank = rank_;
  config.size = size();
  config.device = device;
  config.host = transport_.get();
  config.health = &health_;
  config.name = [this](int rank) { return who(rank); };
  config.gather = [this, identity](std::span<const std::uint64_t> mine) { return gather_as(identity, mine); };
  config.hosts = planner_->hosts();
  config.processes_of_gpu = job_->local_processes();
  config.options = options_;
  TUTTI_ASSIGN(engine_, KernelEngine::create(std::move(config)));
  return {};
}

Status TuttiCommunicator::open_device(int device) {
  TUTTI_TRY(usable());
  const executor::CallIdentity identity = identity_on_device({.collective = Collective::barrier}, 0);
  if (far_) return open_grid(device, identity).status();  // a send may come first there
  queue_.wait_idle();
  waiter_.set_background(false);
  if (health_.failed()) return failed(health_.status());
  return need_device_half(device, identity);
}

Status TuttiCommunicator::run_together(std::span<const Call> calls) {
  TUTTI_TRY(usable());
  if (!far_) {
    queue_.wait_idle();
    waiter_.set_background(false);
    if (health_.failed()) return failed(health_.status());
  }
  int device = -1;
  for (const Call& call : calls) {
    TUTTI_TRY(validate(call, rank_, size(), own_name_));
    TUTTI_ASSIGN(const int other, device_of(call));
    if (device >= 0 && other >= 0 && device != other) {
      return invalid_argument(
          fmt::format("{} groups calls on memory of GPU {} and of GPU {}; expected one GPU", own_name_, device, other));
    }
    device = std::max(device, other);
  }
  for (const Call& call : calls.first(far_ ? calls.size() : 0)) TUTTI_TRY(run(call));
  if (far_) return {};
  const auto alone = [](const Call& call) { return call.count == 0 || call.collective == Collective::all_to_allv; };
  while (!calls.empty()) {
    std::size_t count = 1;
    const Call& first = calls.front();
    while (!alone(first) && count < calls.size() && !alone(calls[count]) && calls[count].stream == first.stream)
      ++count;
    if (count == 1) {
      TUTTI_TRY(execute(first));
    } else {
      TUTTI_TRY(bound_run_ahead());
      TUTTI_TRY(execute_on_device(calls.first(count), device));
    }
    calls = calls.subspan(count);
  }
  return {};
}

KernelEngine::Request TuttiCommunicator::request_on_device(const Call& call) const {
  KernelEngine::Request request;
  request.call = &call;
  request.deterministic = call.deterministic || options_.deterministic;
  request.identity = identity_of(call, request.deterministic);
  request.algorithm = call.algorithm;
  request.wish = options_.algorithm;
  request.in_place = is_in_place(call);
  return request;
}

Status TuttiCommunicator::execute_on_device(std::span<const Call> calls, int device,
                                            const executor::UnevenPieces* uneven) {
  TUTTI_TRY(need_device_half(device, identity_on_device(calls.front(), 0)));
  std::vector<KernelEngine::Request> requests;
  for (const Call& call : calls) requests.push_back(request_on_device(call));
  requests.front().uneven = uneven;
  const Status status = engine_->run(requests);
  last_on_device_ = true;
  for (std::size_t i = 0; watched_ && status.ok() && i < calls.size(); ++i) {
    const Call& call = calls[i];
    executor::CallSnapshot made;
    made.sequence = engine_->calls() - calls.size() + i + 1;
    made.collective = call.collective;
    made.type = call.type;
    made.op = call.op;
    made.deterministic = requests[i].deterministic;
    made.root = call.root;
    made.count = call.count;
    made.bytes = elements_of(call, size()) * size_of(call.type);
    const Explanation& how = engine_->explanations()[i];
    told(made, how.algorithm,
         fmt::format("{}, {} round(s), on GPU {}, {}", how.algorithm, how.rounds, engine_->device(), how.reason));
  }
  return put_on_device(status);
}

Status TuttiCommunicator::mixed_memories() {
  const auto first_with = [this](std::uint64_t flag) {
    const auto has = [flag](const executor::PeerCounts& counts) { return (counts.largest & flag) != 0; };
    return static_cast<int>(std::find_if(peer_counts_.begin(), peer_counts_.end(), has) - peer_counts_.begin());
  };
  const executor::CallSnapshot call = last_call();
  return failed(health_.fail(Code::mismatch, executor::mixed_text([this](int rank) { return who(rank); },
                                                                  first_with(executor::PeerCounts::kOnHost), call,
                                                                  first_with(executor::PeerCounts::kOnDevice), call)));
}

Status TuttiCommunicator::execute_all_to_allv_on_device(const Call& data, std::uint64_t memories, int device) {
  if ((memories & executor::PeerCounts::kOnHost) != 0) return mixed_memories();
  if (far_) {  // this rank has no buffers: it takes part in the others' turns
    TUTTI_ASSIGN(const std::size_t bytes, slot_bytes());
    return carry_out_uneven_turns(HostStagedCall(data, rank_, size(), bytes), 0);
  }
  const executor::UnevenPieces uneven = pieces_of(data);
  return execute_on_device({&data, 1}, device, &uneven);
}

}  // namespace tutti
