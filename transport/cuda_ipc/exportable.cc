#if TUTTI_HAS_CUDA
#include "transport/cuda_ipc/exportable.h"

#include <fmt/format.h>

#include <cstring>

#include "base/even_share.h"
#include "base/log.h"
#include "device/driver.h"

namespace tutti::transport {

using device::check;
using device::Driver;

namespace {

constexpr CUmemAllocationHandleType kDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

std::string where(int device) { return fmt::format("GPU {}", device); }

CUmemLocation on_device(int device) {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device;
  return location;
}

/// Lets `device` use a mapping, and (of its own memory) all GPUs that can reach it.
Status give_access(const Driver& cuda, CUdeviceptr address, std::size_t bytes, int device, bool own) {
  TUTTI_ASSIGN(const int devices, device::device_count());
  const auto grant = [&](int to) {
    CUmemAccessDesc access{};
    access.location = on_device(to);
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return cuda.MemSetAccess(address, bytes, &access, 1);
  };
  TUTTI_TRY(check(grant(device), "cuMemSetAccess", where(device)));
  for (int other = 0; own && other < devices; ++other) {
    int reaches = 0;
    if (other == device || cuda.DeviceCanAccessPeer(&reaches, other, device) != CUDA_SUCCESS) continue;
    if (reaches != 0) (void)grant(other);
  }
  return {};
}

/// Physical memory at an address of its own. Takes the handle, and releases it: the mapping keeps the memory.
Result<CUdeviceptr> map_handle(const Driver& cuda, CUmemGenericAllocationHandle handle, std::size_t bytes, int device,
                               bool own) {
  CUdeviceptr address = 0;
  Status status = check(cuda.MemAddressReserve(&address, bytes, 0, 0, 0), "cuMemAddressReserve", where(device));
  if (status.ok()) {
    status = check(cuda.MemMap(address, bytes, 0, handle, 0), "cuMemMap", where(device));
    if (status.ok()) {
      status = give_access(cuda, address, bytes, device, own);
      if (!status.ok()) (void)cuda.MemUnmap(address, bytes);
    }
    if (!status.ok()) (void)cuda.MemAddressFree(address, bytes);
  }
  (void)cuda.MemRelease(handle);
  if (!status.ok()) return status;
  return address;
}

void unmap(const Driver& cuda, CUdeviceptr address, std::size_t bytes) {
  (void)cuda.MemUnmap(address, bytes);
  (void)cuda.MemAddressFree(address, bytes);
}

}  // namespace

Result<std::unique_ptr<OwnMemory>> OwnMemory::make(int device, std::size_t bytes) {
  std::unique_ptr<OwnMemory> made(new OwnMemory(device, bytes));
  TUTTI_TRY(made->allocate());
  return made;
}

Status OwnMemory::allocate() {
  TUTTI_ASSIGN(const Driver* cuda, device::driver());
  TUTTI_ASSIGN(const device::CurrentContext current, device::enter(device_));
  const device::UncapturedCalls uncaptured(*cuda);
  TUTTI_TRY(
      check(cuda->MemAlloc(&address_, bytes_), "cuMemAlloc", fmt::format("{} (of {} bytes)", where(device_), bytes_)));
  CUipcMemHandle handle{};
  const CUresult shared = cuda->IpcGetMemHandle(&handle, address_);
  if (shared == CUDA_SUCCESS) {
    how_ = {.kind = ExportKind::ipc, .bytes = bytes_};
    std::memcpy(how_.handle, handle.reserved, sizeof(how_.handle));
    return {};
  }
  const Status mapped = map_physical();
  if (!mapped.ok()) {
    // Threads of this process reach it all the same.
    log::debug("memory of GPU {} cannot be handed to other processes: {}; {}", device_,
               check(shared, "cuIpcGetMemHandle").message(), mapped.message());
  }
  return {};
}

Status OwnMemory::map_physical() {
  TUTTI_ASSIGN(const Driver* cuda, device::driver());
  CUmemAllocationProp what{};
  what.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  what.location = on_device(device_);
  what.requestedHandleTypes = kDescriptor;
  std::size_t unit = 0;
  TUTTI_TRY(check(cuda->MemGetAllocationGranularity(&unit, &what, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                  "cuMemGetAllocationGranularity", where(device_)));
  const std::size_t bytes = round_up(bytes_, unit);
  CUmemGenericAllocationHandle handle = 0;
  TUTTI_TRY(check(cuda->MemCreate(&handle, bytes, &what, 0), "cuMemCreate", where(device_)));
  int file = -1;
  Status exported = check(cuda->MemExportToShareableHandle(&file, handle, kDescriptor, 0),
                          "cuMemExportToShareableHandle", where(device_));
  if (!exported.ok()) {
    (void)cuda->MemRelease(handle);
    return exported;
  }
  descriptor_ = sockets::Fd(file);
  const Result<CUdeviceptr> mapped = map_handle(*cuda, handle, bytes, device_, true);
  if (!mapped.ok()) {
    descriptor_.reset();
    return mapped.status();
  }
  (void)cuda->MemFree(address_);
  address_ = mapped.value();
  bytes_ = bytes;
  how_ = {.kind = ExportKind::descriptor, .bytes = bytes};
  return {};
}

OwnMemory::~OwnMemory() {
  const Result<const Driver*> cuda = device::driver();
  if (!cuda.ok() || address_ == 0) return;
  const Result<device::CurrentContext> current = device::enter(device_);
  if (!current.ok()) return;
  const device::UncapturedCalls uncaptured(*cuda.value());
  if (how_.kind == ExportKind::descriptor) {
    unmap(*cuda.value(), address_, bytes_);
  } else {
    (void)cuda.value()->MemFree(address_);
  }
}

Result<Allocation> find_allocation(const void* address) {
  TUTTI_ASSIGN(const Driver* cuda, device::driver());
  Allocation found;
  unsigned type = 0;
  unsigned long long id = 0;
  int ipc = 0;
  std::uint64_t handles = 0;
  CUpointer_attribute attributes[] = {
      CU_POINTER_ATTRIBUTE_MEMORY_TYPE,         CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
      CU_POINTER_ATTRIBUTE_BUFFER_ID,           CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
      CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,    CU_POINTER_ATTRIBUTE_RANGE_SIZE,
      CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES};
  void* values[] = {&type, &found.device, &id, &ipc, &found.base, &found.bytes, &handles};
  TUTTI_TRY(check(cuda->PointerGetAttributes(7, attributes, values, reinterpret_cast<CUdeviceptr>(address)),
                  "cuPointerGetAttributes"));
  if (type != CU_MEMORYTYPE_DEVICE) {
    return invalid_argument(fmt::format("address {} is not memory of a GPU", address));
  }
  found.id = id;
  found.ipc = ipc != 0;
  found.descriptor = (handles & kDescriptor) != 0;
  if (found.descriptor) {  // the attributes tell of the reserved addresses, which may hold several allocations
    TUTTI_ASSIGN(const device::CurrentContext current, device::enter(found.device));
    TUTTI_TRY(check(cuda->MemGetAddressRange(&found.base, &found.bytes, reinterpret_cast<CUdeviceptr>(address)),
                    "cuMemGetAddressRange"));
  }
  return found;
}

Result<Exported> export_allocation(const Allocation& allocation) {
  Exported exported;
  exported.how.bytes = allocation.bytes;
  if (!allocation.ipc && !allocation.descriptor) return exported;
  TUTTI_ASSIGN(const Driver* cuda, device::driver());
  TUTTI_ASSIGN(const device::CurrentContext current, device::enter(allocation.device));
  const device::UncapturedCalls uncaptured(*cuda);
  if (allocation.ipc) {
    CUipcMemHandle handle{};
    if (cuda->IpcGetMemHandle(&handle, allocation.base) != CUDA_SUCCESS) return exported;
    exported.how.kind = ExportKind::ipc;
    std::memcpy(exported.how.handle, handle.reserved, sizeof(exported.how.handle));
    return exported;
  }
  CUmemGenericAllocationHandle handle = 0;
  int file = -1;
  if (cuda->MemRetainAllocationHandle(&handle, reinterpret_cast<void*>(allocation.base)) != CUDA_SUCCESS) {
    return exported;
  }
  const CUresult result = cuda->MemExportToShareableHandle(&file, handle, kDescriptor, 0);
  (void)cuda->MemRelease(handle);
  if (result != CUDA_SUCCESS) return exported;
  exported.how.kind = ExportKind::descriptor;
  exported.descriptor = sockets::Fd(file);
  return exported;
}

Result<std::unique_ptr<PeerMemory>> PeerMemory::open(int device, const Export& how, sockets::Fd descriptor) {
  TUTTI_ASSIGN(const Driver* cuda, device::driver());
  TUTTI_ASSIGN(const device::CurrentContext current, device::enter(device));
  const device::UncapturedCalls uncaptured(*cuda);
  std::unique_ptr<PeerMemory> made(new PeerMemory(device, how));
  if (how.kind == ExportKind::ipc) {
    CUipcMemHandle handle{};
    std::memcpy(handle.reserved, how.handle, sizeof(how.handle));
    TUTTI_TRY(check(cuda->IpcOpenMemHandle(&made->address_, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
                    "cuIpcOpenMemHandle", where(device)));
    return made;
  }
  if (how.kind == ExportKind::none) return unsupported("the memory cannot be handed to other processes");
  CUmemGenericAllocationHandle handle = 0;
  // The descriptor itself takes the place of a pointer.
  TUTTI_TRY(check(cuda->MemImportFromShareableHandle(
                      &handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor.get())), kDescriptor),
                  "cuMemImportFromShareableHandle", where(device)));
  TUTTI_ASSIGN(made->address_, map_handle(*cuda, handle, how.bytes, device, false));
  return made;
}

PeerMemory::~PeerMemory() {
  const Result<const Driver*> cuda = device::driver();
  if (!cuda.ok() || address_ == 0) return;
  const Result<device::CurrentContext> current = device::enter(device_);
  if (!current.ok()) return;
  const device::UncapturedCalls uncaptured(*cuda.value());
  if (how_.kind == ExportKind::descriptor) {
    unmap(*cuda.value(), address_, how_.bytes);
  } else {
    (void)cuda.value()->IpcCloseMemHandle(address_);
  }
}

}  // namespace tutti::transport
#endif
