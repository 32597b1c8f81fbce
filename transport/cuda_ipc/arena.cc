#if TUTTI_HAS_CUDA
#include "transport/cuda_ipc/arena.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/even_share.h"
#include "device/driver.h"

namespace tutti::transport {

using device::check;
using device::Driver;

namespace {

constexpr std::size_t kAlignment = 512;
constexpr std::size_t kSegmentUnit = std::size_t{2} << 20;

struct Arenas {
  std::mutex mutex;
  std::map<std::pair<std::uint64_t, int>, DeviceArena*> all;  // by the driver's generation and GPU; guarded by mutex
};

// Never destroyed: buffers may be released by static destructors.
Arenas& arenas() {
  static Arenas& arenas = *new Arenas;
  return arenas;
}

}  // namespace

Result<DeviceArena*> DeviceArena::of(int device) {
  TUTTI_TRY(device::primary_context(device).status());
  Arenas& known = arenas();
  const std::lock_guard lock(known.mutex);
  DeviceArena*& arena = known.all[{device::driver_generation(), device}];
  if (arena == nullptr) arena = new DeviceArena(device);
  return arena;
}

bool DeviceArena::deallocate(void* pointer) {
  std::vector<DeviceArena*> here;
  {
    Arenas& known = arenas();
    const std::lock_guard lock(known.mutex);
    for (const auto& [key, arena] : known.all) {
      if (key.first == device::driver_generation()) here.push_back(arena);
    }
  }
  return std::any_of(here.begin(), here.end(), [&](DeviceArena* arena) { return arena->release(pointer); });
}

std::optional<std::byte*> DeviceArena::take_from(Segment& segment, std::size_t bytes) {
  for (auto it = segment.free.begin(); it != segment.free.end(); ++it) {
    const auto [offset, length] = *it;
    if (length < bytes) continue;
    segment.free.erase(it);
    if (length > bytes) segment.free.emplace(offset + bytes, length - bytes);
    segment.used.emplace(offset, bytes);
    return reinterpret_cast<std::byte*>(segment.memory->address() + offset);
  }
  return std::nullopt;
}

Status DeviceArena::zero(std::byte* from, std::size_t bytes) const {
  TUTTI_ASSIGN(const Driver* cuda, device::driver());
  TUTTI_ASSIGN(const device::CurrentContext current, device::enter(device_));
  const device::UncapturedCalls uncaptured(*cuda);
  CUstream stream = nullptr;
  TUTTI_TRY(check(cuda->StreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0), "cuStreamCreateWithPriority"));
  Status status = check(cuda->MemsetD8Async(reinterpret_cast<CUdeviceptr>(from), 0, bytes, stream), "cuMemsetD8Async");
  if (status.ok()) status = check(cuda->StreamSynchronize(stream), "cuStreamSynchronize");
  (void)cuda->StreamDestroy(stream);
  return status;
}

std::byte* DeviceArena::take(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  for (Segment& segment : all_) {
    if (!segment.memory) continue;
    if (const std::optional<std::byte*> taken = take_from(segment, bytes)) {
      allocated_ += bytes;
      return *taken;
    }
  }
  return nullptr;
}

Result<std::byte*> DeviceArena::grow(std::size_t bytes) {
  const std::lock_guard lock(growth_mutex_);
  if (std::byte* made = take(bytes)) return made;  // another thread has made room meanwhile
  for (const std::size_t size_wanted : {std::max(bytes, kSegment), bytes}) {
    Result<std::unique_ptr<OwnMemory>> memory = OwnMemory::make(device_, round_up(size_wanted, kSegmentUnit));
    if (!memory.ok() && memory.status().code() == Code::memory_limit) continue;
    TUTTI_TRY(memory.status());
    Segment segment;
    segment.memory = memory.take();
    segment.free.emplace(0, segment.memory->bytes());
    {
      const std::lock_guard inside(mutex_);
      all_.push_back(std::move(segment));
      count_.store(all_.size(), std::memory_order_release);
    }
    if (std::byte* made = take(bytes)) return made;
  }
  return Status(Code::memory_limit, "");
}

Result<std::byte*> DeviceArena::allocate(std::size_t bytes) {
  const bool possible = bytes <= SIZE_MAX / 2;  // else rounding up could pass the end of a size_t
  const std::size_t size = possible ? round_up(std::max<std::size_t>(bytes, 1), kAlignment) : bytes;
  std::byte* made = possible ? take(size) : nullptr;
  if (made == nullptr) {
    const Result<std::byte*> grown = possible ? grow(size) : Status(Code::memory_limit, "");
    if (!grown.ok() && grown.status().code() == Code::memory_limit) {
      return Status(Code::memory_limit,
                    fmt::format("allocate({}) finds no room in the memory of {}, of which {} bytes are in use by "
                                "allocate()",
                                bytes, device::name_of(device_), allocated()));
    }
    TUTTI_TRY(grown.status());
    made = grown.value();
  }
  const Status zeroed = zero(made, size);
  if (!zeroed.ok()) {
    (void)release(made);
    return zeroed;
  }
  return made;
}

bool DeviceArena::release(void* pointer) {
  const auto place = find(pointer, 1);
  if (!place) return false;
  if (const Result<const Driver*> cuda = device::driver(); cuda.ok()) {
    if (const Result<device::CurrentContext> current = device::enter(device_); current.ok()) {
      const device::UncapturedCalls uncaptured(*cuda.value());
      (void)cuda.value()->CtxSynchronize();
    }
  }
  std::unique_ptr<OwnMemory> empty;  // freed without the lock: the driver may wait for kernels
  const std::lock_guard lock(mutex_);
  Segment& segment = all_[place->segment];
  const auto used = segment.used.find(place->offset);
  TUTTI_CHECK(used != segment.used.end());
  std::size_t begin = used->first;
  std::size_t end = begin + used->second;
  allocated_ -= used->second;
  segment.used.erase(used);
  auto next = segment.free.lower_bound(begin);
  if (next != segment.free.end() && next->first == end) {
    end += next->second;
    next = segment.free.erase(next);
  }
  if (next != segment.free.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == begin) {
      begin = previous->first;
      segment.free.erase(previous);
    }
  }
  segment.free.emplace(begin, end - begin);
  if (segment.used.empty() && !segment.exported) empty = std::move(segment.memory);
  return true;
}

std::optional<DeviceArena::ExportedSegment> DeviceArena::export_segment(std::size_t number) {
  const std::lock_guard lock(mutex_);
  Segment& segment = all_[number];
  if (!segment.memory) return std::nullopt;
  segment.exported = true;
  return ExportedSegment{segment.memory->address(), segment.memory->how(), segment.memory->descriptor()};
}

std::optional<DeviceArena::Place> DeviceArena::find(const void* address, std::size_t bytes) const {
  const auto at = reinterpret_cast<CUdeviceptr>(address);
  const std::lock_guard lock(mutex_);
  for (std::size_t s = 0; s < all_.size(); ++s) {
    if (!all_[s].memory) continue;
    const CUdeviceptr base = all_[s].memory->address();
    const std::size_t size = all_[s].memory->bytes();
    if (at >= base && at - base < size && bytes <= size - (at - base)) return Place{s, at - base};
  }
  return std::nullopt;
}

std::size_t DeviceArena::allocated() const {
  const std::lock_guard lock(mutex_);
  return allocated_;
}

}  // namespace tutti::transport
#endif
