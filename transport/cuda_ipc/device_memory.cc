#include "transport/cuda_ipc/device_memory.h"

#include "device/memory_kind.h"
#if TUTTI_HAS_CUDA
#include <algorithm>
#include <atomic>

#include "device/driver.h"
#include "transport/cuda_ipc/arena.h"
#endif

namespace tutti::transport {

#if TUTTI_HAS_CUDA

namespace {
std::atomic<bool> any_device_memory{false};
}  // namespace

Result<std::byte*> allocate_device(std::size_t bytes) {
  TUTTI_ASSIGN(const int current, device::current_device());
  TUTTI_ASSIGN(DeviceArena * arena, DeviceArena::of(std::max(current, 0)));
  any_device_memory.store(true, std::memory_order_relaxed);
  return arena->allocate(bytes);
}

bool deallocate_device(void* pointer) {
  return any_device_memory.load(std::memory_order_relaxed) && DeviceArena::deallocate(pointer);
}

#else

Result<std::byte*> allocate_device(std::size_t /*bytes*/) { return device::available(); }

bool deallocate_device(void* /*pointer*/) { return false; }

#endif

}  // namespace tutti::transport
