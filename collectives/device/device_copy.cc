#include "collectives/device/device_copy.h"

#include "device/memory_kind.h"

#if TUTTI_HAS_CUDA
#include "device/driver.h"
#endif

namespace tutti {

#if TUTTI_HAS_CUDA

Status copy_on_device(void* to, const void* from, std::size_t bytes, void* stream) {
  if (to == from) return {};
  TUTTI_ASSIGN(const device::Driver* cuda, device::driver());
  const device::MemoryKind kind = device::kind_of(to).on_device() ? device::kind_of(to) : device::kind_of(from);
  TUTTI_ASSIGN(const auto context, device::enter(kind.device));
  return device::check(cuda->MemcpyAsync(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from), bytes,
                                         static_cast<CUstream>(stream)),
                       "cuMemcpyAsync", device::name_of(kind.device));
}

#else

Status copy_on_device(void*, const void*, std::size_t, void*) {
  return unsupported("this build of Tutti has no CUDA; expected host memory");
}

#endif

}  // namespace tutti
