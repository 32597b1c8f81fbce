#include "collectives/device/device_paths.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "collectives/calls/call_identity.h"
#include "collectives/device/kernel_engine.h"
#include "collectives/device/kernel_path.h"
#include "collectives/device/multi_host/gdr_path.h"
#include "collectives/device/multi_host/hierarchical_path.h"
#include "collectives/device/multi_host/staged_path.h"
#include "device/memory_kind.h"

namespace tutti {

DevicePaths::DevicePaths(const CallParts& parts) : parts_(parts), pipeline_(parts.context, parts.log) {
  if (parts.context.multi_host()) {
    auto gdr = std::make_unique<GdrPath>(parts, pipeline_);
    paths_.push_back(std::make_unique<HierarchicalPath>(parts, pipeline_, *gdr));
    paths_.push_back(std::move(gdr));
  } else {
    paths_.push_back(std::make_unique<KernelPath>(parts));
  }
  paths_.push_back(std::make_unique<StagedPath>(parts, pipeline_));
}

// Kernels first, then the slots that NICs write to, then pinned memory.
DevicePaths::~DevicePaths() {
  for (auto& path : paths_) path.reset();
  KernelEngine::sweep();
}

int DevicePaths::device_in_use() const {
  for (const auto& path : paths_) {
    if (path->device() >= 0) return path->device();
  }
  return pipeline_.device();
}

Result<int> DevicePaths::device_of(const Call& call) const {
  const std::string& name = parts_.context.name;
  const device::MemoryKind send = call.send == nullptr ? device::MemoryKind{} : device::kind_of(call.send);
  const device::MemoryKind recv = call.recv == nullptr ? device::MemoryKind{} : device::kind_of(call.recv);
  if (!send.on_device() && !recv.on_device()) return -1;
  if (send.on_device() && recv.on_device() ? send.device != recv.device
                                           : call.send != nullptr && call.recv != nullptr) {
    return invalid_argument(fmt::format("{} called {} with send in {} and recv in {}; expected both in the same memory",
                                        name, name_of(call.collective), device::print(send), device::print(recv)));
  }
  const int device = send.on_device() ? send.device : recv.device;
  if (device_in_use() >= 0 && device != device_in_use()) {
    return invalid_argument(fmt::format("{} called {} on memory of GPU {}; its communicator is on GPU {}", name,
                                        name_of(call.collective), device, device_in_use()));
  }
  return device;
}

Result<int> DevicePaths::device_of(std::span<const Transfer> transfers) const {
  const std::string& name = parts_.context.name;
  int device = -1;
  bool host = false;
  for (const Transfer& transfer : transfers) {
    const device::MemoryKind kind =
        transfer.buffer == nullptr ? device::MemoryKind{} : device::kind_of(transfer.buffer);
    if (!kind.on_device()) {
      host = host || transfer.buffer != nullptr;
      continue;
    }
    const char* what = transfer.sending ? "send" : "recv";
    if (device >= 0 && kind.device != device) {
      return invalid_argument(fmt::format("{} groups messages on memory of GPU {} and of GPU {}; expected one GPU",
                                          name, device, kind.device));
    }
    device = kind.device;
    if (transfer.tag != 0 || (!transfer.sending && transfer.peer == kAnySource)) {
      return invalid_argument(
          fmt::format("{} called {} on {} with {}; expected messages between two ranks in their "
                      "order, without tags",
                      name, what, device::print(kind),
                      transfer.tag != 0 ? fmt::format("tag {}", transfer.tag) : std::string("any source")));
    }
    if (transfer.stream != transfers.front().stream) {
      return invalid_argument(fmt::format("{} groups messages on several streams; expected one", name));
    }
  }
  if (host) {
    return invalid_argument(
        fmt::format("{} groups messages on host memory and on GPU {}; expected one of the two", name, device));
  }
  if (device_in_use() >= 0 && device != device_in_use()) {
    return invalid_argument(fmt::format("{} called send or recv on memory of GPU {}; its communicator is on GPU {}",
                                        name, device, device_in_use()));
  }
  return device;
}

Status DevicePaths::open(int device) {
  CommContext& context = parts_.context;
  if (!context.multi_host()) context.use_callers_thread();
  if (context.health.failed()) return context.fail(context.health.status());
  const executor::CallIdentity as =
      identity_on_device({.collective = Collective::barrier}, context.options, /*fragment_elements=*/0);
  return paths_.front()->open(device, as).status();
}

Result<DevicePath*> DevicePaths::path_for(const Call& call, int device) {
  const executor::CallIdentity as = identity_on_device(call, parts_.context.options, /*fragment_elements=*/0);
  for (const auto& path : paths_) {
    if (!path->wants(call)) continue;
    TUTTI_ASSIGN(const bool is_open, path->open(device, as));
    if (is_open) return path.get();
  }
  return unsupported(fmt::format("no way to run {} on device memory", name_of(call.collective)));
}

Status DevicePaths::run(std::span<const Call> calls, int device) {
  if (parts_.context.multi_host()) {
    TUTTI_TRY(pipeline_.open(device));
    for (const Call& call : calls) TUTTI_TRY(pipeline_.staging().check(call.stream));
  }
  while (!calls.empty()) {
    TUTTI_ASSIGN(DevicePath* const path, path_for(calls.front(), device));
    const std::size_t count = path->together() ? calls.size() : 1;
    TUTTI_TRY(path->run(calls.first(count)));
    calls = calls.subspan(count);
  }
  return {};
}

Status DevicePaths::run_uneven(const Call& data, int device) {
  for (const auto& path : paths_) {
    if (path->wants(data)) return path->run_uneven(data, device);
  }
  return unsupported("no way to run all_to_allv on device memory");
}

Status DevicePaths::run_p2p(std::span<const Transfer> transfers, int device) {
  for (const auto& path : paths_) {
    if (path->takes_p2p()) return path->run_p2p(transfers, device);
  }
  return unsupported("no way for messages on device memory");
}

std::string DevicePaths::refusals() const {
  std::string all;
  for (const auto& path : paths_) {
    if (const std::string why = path->refusal(); !why.empty()) all += "; " + why;
  }
  return all;
}

void DevicePaths::add_to(MemoryReport& report) const {
  report.scratch += pipeline_.memory();
  for (const auto& path : paths_) path->add_to(report);
}

std::uint64_t DevicePaths::calls() const {
  std::uint64_t calls = 0;
  for (const auto& path : paths_) calls += path->calls();
  return calls;
}

void DevicePaths::set_timeout(std::chrono::nanoseconds timeout) {
  pipeline_.set_timeout(timeout);
  for (const auto& path : paths_) path->set_timeout(timeout);
}

}  // namespace tutti
