// CudaIpc's regions: how callers' memory is opened to peers, by events that each applies at its next call.
#if TUTTI_HAS_CUDA
#include <fmt/format.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "base/log.h"
#include "device/memory_kind.h"
#include "transport/cuda_ipc/cuda_ipc.h"

namespace tutti::transport {

using device::check;

std::optional<std::size_t> CudaIpc::announce(CUdeviceptr base, std::size_t bytes, std::uint64_t id, const Export& how,
                                             int descriptor) {
  if (how.kind == ExportKind::none && !all_in_process_) return std::nullopt;
  std::size_t number = 0;
  while (number < own_.size() && (own_[number].open || !logs_.is_applied(own_[number].event))) ++number;
  if (number == static_cast<std::size_t>(kRegions)) return std::nullopt;
  if (!logs_.has_room()) return std::nullopt;
  const std::uint64_t next = logs_.events() + 1;
  if (how.kind == ExportKind::descriptor) {
    for (std::size_t r = 0; r < ranks(); ++r) {
      if (!peers_[r].same_process) send_descriptor(static_cast<int>(r), next, descriptor);
    }
  }
  logs_.append({.kind = RegionEventKind::open, .region = static_cast<std::uint32_t>(number), .base = base, .how = how});
  if (number == own_.size()) own_.emplace_back();
  own_[number] = {.base = base, .bytes = bytes, .id = id, .event = next, .open = true};
  by_base_[base] = number;
  return number;
}

void CudaIpc::withdraw(std::size_t number) {
  Region& region = own_[number];
  by_base_.erase(region.base);
  if (!logs_.has_room()) return;  // the region stays, unused: its number is lost, and no more
  logs_.append({.kind = RegionEventKind::close, .region = static_cast<std::uint32_t>(number), .how = {}});
  region.open = false;
  region.event = logs_.events();
}

void CudaIpc::withdraw_if_freed(std::size_t number) {
  const Region& region = own_[number];
  const auto known = by_base_.find(region.base);
  if (region.id == 0 || known == by_base_.end() || known->second != number) return;
  const Result<Allocation> now = find_allocation(reinterpret_cast<const void*>(region.base));
  if (!now.ok() || now.value().id != region.id) withdraw(number);
}

bool CudaIpc::is_known(Region& region, std::size_t number) {
  if (region.known_by_all) return true;
  if (!logs_.is_applied(region.event)) return false;
  const auto me = static_cast<std::size_t>(config_.rank);
  for (std::size_t r = 0; r < ranks(); ++r) {
    const std::uint64_t refused = config_.logs[r]->refused[me][number / 64].load(std::memory_order_relaxed);
    if ((refused >> number % 64 & 1) != 0) return false;
  }
  region.known_by_all = true;
  return true;
}

int CudaIpc::regions() const {
  int open = 0;
  for (const Region& region : own_) open += region.open ? 1 : 0;
  return open;
}

Status CudaIpc::announce_segments() {
  if (all_in_process_) return {};
  while (segments_.size() < arena_->segments()) {
    const std::optional<DeviceArena::ExportedSegment> exported = arena_->export_segment(segments_.size());
    std::optional<std::size_t> region;
    if (exported) {
      region = announce(exported->base, exported->how.bytes, 0, exported->how, exported->descriptor);
      if (!region && exported->how.kind != ExportKind::none) return {};  // no room now; next time
    }
    segments_.push_back(region);
  }
  return {};
}

Status CudaIpc::poll() {
  // One look in a while at one region, in turn.
  constexpr std::uint64_t kLookEvery = 16;
  if (++polls_ % kLookEvery == 0 && !own_.empty()) withdraw_if_freed(polls_ / kLookEvery % own_.size());
  if (segments_.size() < arena_->segments()) TUTTI_TRY(announce_segments());
  for (std::size_t r = 0; r < ranks(); ++r) {
    if (config_.logs[r]->announced.load(std::memory_order_relaxed) != seen_[r]) {
      TUTTI_TRY(apply_events(static_cast<int>(r)));
    }
  }
  return {};
}

Status CudaIpc::apply_events(int owner) {
  const auto r = static_cast<std::size_t>(owner);
  const RegionLog& theirs = *config_.logs[r];
  const std::uint64_t announced = theirs.announced.load(std::memory_order_acquire);
  for (; seen_[r] < announced; ++seen_[r]) {
    const RegionEvent& event = theirs.ring[seen_[r] % kRegionLogRing];
    if (event.kind == RegionEventKind::open) {
      TUTTI_TRY(open_region(owner, event, seen_[r] + 1));
    } else {
      TUTTI_TRY(set_region(owner, event.region, 0));
      opened_[r].erase(event.region);
    }
    logs_.own().applied[r].store(seen_[r] + 1, std::memory_order_release);
  }
  return {};
}

Status CudaIpc::open_region(int owner, const RegionEvent& event, std::uint64_t number) {
  const auto r = static_cast<std::size_t>(owner);
  std::atomic<std::uint64_t>& refused = logs_.own().refused[r][event.region / 64];
  const std::uint64_t bit = std::uint64_t{1} << event.region % 64;
  refused.fetch_and(~bit, std::memory_order_relaxed);
  if (peers_[r].same_process) return set_region(owner, event.region, event.base);
  sockets::Fd descriptor;
  if (event.how.kind == ExportKind::descriptor) {
    TUTTI_ASSIGN(descriptor, descriptors_.take(owner, number, config_.alive, config_.name, config_.deadline));
  }
  Result<std::unique_ptr<PeerMemory>> mapped = PeerMemory::open(config_.device, event.how, std::move(descriptor));
  if (mapped.ok()) {
    const std::uint64_t address = mapped.value()->address();
    opened_[r][event.region] = mapped.take();
    return set_region(owner, event.region, address);
  }
  if (!config_.alive(owner)) {
    return {Code::peer_died, config_.name(owner) + " died while device memory was shared"};
  }
  // It may have been freed meanwhile. Its owner goes on without.
  log::debug("memory of {} is not mapped: {}", config_.name(owner), mapped.status().message());
  refused.fetch_or(bit, std::memory_order_relaxed);
  return {};
}

Status CudaIpc::set_region(int owner, std::uint32_t region, std::uint64_t address) {
  TUTTI_ASSIGN(const device::CurrentContext current, device::enter(config_.device));
  const device::UncapturedCalls uncaptured(*cuda_);
  const CUdeviceptr entry = table_->address() + ranks() * sizeof(DevicePeer) +
                            (static_cast<std::size_t>(owner) * kRegions + region) * sizeof(address);
  TUTTI_TRY(check(cuda_->MemcpyAsync(entry, reinterpret_cast<CUdeviceptr>(&address), sizeof(address), stream_),
                  "cuMemcpyAsync"));
  return check(cuda_->StreamSynchronize(stream_), "cuStreamSynchronize", fmt::format("GPU {}", config_.device));
}

Result<CudaIpc::Reach> CudaIpc::handle_of(const void* pointer, std::size_t bytes) {
  const Reach plain{reinterpret_cast<std::uint64_t>(pointer), true};
  if (bytes == 0) return Reach{0, false};
  if (const std::optional<DeviceArena::Place> place = arena_->find(pointer, bytes)) {
    if (all_in_process_) return Reach{plain.handle, false};
    TUTTI_TRY(announce_segments());
    if (place->segment >= segments_.size() || !segments_[place->segment]) return plain;
    const std::size_t number = *segments_[place->segment];
    if (!is_known(own_[number], number)) return plain;
    return Reach{device_handle(number, place->offset), false};
  }
  TUTTI_ASSIGN(const Allocation found, find_allocation(pointer));
  if (found.device != config_.device) {
    return invalid_argument(fmt::format("address {} is memory of GPU {}; expected memory of GPU {}, the communicator's",
                                        pointer, found.device, config_.device));
  }
  const auto offset = reinterpret_cast<CUdeviceptr>(pointer) - found.base;
  // Threads on one GPU share all there is. Other GPUs see what a peer's kernels may use without asking, which memory of
  // a pool is not.
  if (all_in_process_) return Reach{plain.handle, !all_on_gpu_ && !found.ipc};
  if (bytes > found.bytes - offset) return plain;  // goes on in another allocation: memory that was mapped by hand
  if (const auto known = by_base_.find(found.base); known != by_base_.end()) {
    Region& region = own_[known->second];
    if (region.id == found.id && region.bytes == found.bytes) {
      return is_known(region, known->second) ? Reach{device_handle(known->second, offset), false} : plain;
    }
    withdraw(known->second);  // freed since, and allocated anew
  }
  // Memory comes from what was freed: that goes first, so that no peer maps an address range twice.
  for (std::size_t number = 0; number < own_.size(); ++number) withdraw_if_freed(number);
  TUTTI_ASSIGN(const Exported exported, export_allocation(found));
  if (exported.how.kind == ExportKind::none) return plain;
  const std::optional<std::size_t> number =
      announce(found.base, found.bytes, found.id, exported.how, exported.descriptor.get());
  if (!number || !is_known(own_[*number], *number)) return plain;
  return Reach{device_handle(*number, offset), false};
}

}  // namespace tutti::transport
#endif
