#include "device/memory_kind.h"

#include <fmt/format.h>

#if TUTTI_HAS_CUDA
#include "device/driver.h"
#include "device/loading.h"
#endif

namespace tutti::device {

std::string print(const MemoryKind& kind) {
  switch (kind.place) {
    case MemoryPlace::host: return "host memory";
    case MemoryPlace::pinned: return "pinned host memory";
    case MemoryPlace::managed: return "managed memory";
    case MemoryPlace::device: return fmt::format("memory of GPU {}", kind.device);
  }
  return "?";
}

#if TUTTI_HAS_CUDA

namespace internal {

std::atomic<Presence> presence{Presence::unknown};

void forget_presence() { presence.store(Presence::unknown, std::memory_order_relaxed); }

MemoryKind ask_kind_of(const void* pointer) {
  const Driver* cuda = loaded_driver();
  presence.store(cuda == nullptr ? Presence::absent : Presence::present, std::memory_order_relaxed);
  if (cuda == nullptr || pointer == nullptr) return {};
  // Words of a pointer that the driver does not know become 0, which is no type of memory. Before any thread has
  // initialised the driver the call fails, and then there is no memory but the host's.
  unsigned type = 0;
  int device = -1;
  int managed = 0;
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                      CU_POINTER_ATTRIBUTE_IS_MANAGED};
  void* values[] = {&type, &device, &managed};
  const CUresult result = cuda->PointerGetAttributes(3, attributes, values, reinterpret_cast<CUdeviceptr>(pointer));
  if (result != CUDA_SUCCESS) return {};
  if (managed != 0) return {MemoryPlace::managed, device};
  if (type == CU_MEMORYTYPE_DEVICE) return {MemoryPlace::device, device};
  if (type == CU_MEMORYTYPE_HOST) return {MemoryPlace::pinned, device};
  return {};
}

}  // namespace internal

Status available() { return driver().status(); }

#else

namespace internal {

std::atomic<Presence> presence{Presence::absent};

MemoryKind ask_kind_of(const void* /*pointer*/) { return {}; }

}  // namespace internal

Status available() { return unsupported("device memory: this build has no CUDA"); }

#endif

}  // namespace tutti::device
