#if TUTTI_HAS_CUDA
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>

#include "base/even_share.h"
#include "base/pages.h"
#include "tests/support/fake_cuda/state.h"

namespace tutti::testing {

namespace fake {

namespace {

constexpr int kGarbage = 0xA5;

CUdeviceptr pointer_to(void* address) { return reinterpret_cast<CUdeviceptr>(address); }

}  // namespace

Memory::~Memory() {
  if (file >= 0) close(file);
}

CUresult add_memory(Kind kind, std::size_t bytes, int device, CUdeviceptr* pointer) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const bool on_device = kind == Kind::device || kind == Kind::pool;
  Device& owner = state->devices[static_cast<std::size_t>(device)];
  if (on_device && bytes > state->machine.memory - owner.allocated) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::size_t mapped = round_up(bytes, page_bytes());
  auto memory = std::make_shared<Memory>();
  memory->bytes = bytes;
  memory->device = device;
  memory->file = memfd_create("tutti fake", MFD_CLOEXEC);
  if (memory->file < 0 || ftruncate(memory->file, static_cast<off_t>(mapped)) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  void* base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, memory->file, 0);
  if (base == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  std::memset(base, kGarbage, bytes);
  if (on_device) owner.allocated += bytes;
  *pointer = pointer_to(base);
  state->memory[*pointer] = {.kind = kind, .bytes = bytes, .device = device, .id = state->next_id++, .memory = memory};
  return CUDA_SUCCESS;
}

std::map<std::uintptr_t, Allocation>::iterator find_memory(CUdeviceptr pointer) {
  auto found = state->memory.upper_bound(pointer);
  if (found == state->memory.begin()) return state->memory.end();
  --found;
  return pointer < found->first + found->second.bytes ? found : state->memory.end();
}

namespace {

CUresult allocate(CUdeviceptr* pointer, std::size_t bytes) {
  TUTTI_FAKE_ENTER("cuMemAlloc", true);
  const Lock lock(state->mutex);
  if (const CUresult error = unsafe_call(); error != CUDA_SUCCESS) return error;
  return add_memory(Kind::device, bytes, current()->device, pointer);
}

void release(std::map<std::uintptr_t, Allocation>::iterator found) {
  const Allocation& gone = found->second;
  if (gone.kind == Kind::device || gone.kind == Kind::pool) {
    state->devices[static_cast<std::size_t>(gone.device)].allocated -= gone.bytes;
  }
  munmap(address(found->first), round_up(gone.bytes, page_bytes()));
  if (gone.alias != nullptr) munmap(gone.alias, round_up(gone.bytes, page_bytes()));
  state->memory.erase(found);
}

CUresult free_memory(CUdeviceptr pointer) {
  TUTTI_FAKE_ENTER("cuMemFree", true);
  Lock lock(state->mutex);
  if (const CUresult error = unsafe_call(); error != CUDA_SUCCESS) return error;
  const auto found = state->memory.find(pointer);
  if (found == state->memory.end()) return CUDA_ERROR_INVALID_VALUE;
  if (found->second.kind != Kind::device && found->second.kind != Kind::managed) return CUDA_ERROR_INVALID_VALUE;
  // As the real one, it waits for all that the device has to do.
  const int device = found->second.device;
  state->changed.wait(lock, [&] {
    for (const StreamRef& stream : state->streams) {
      if (stream->device == device && stream->done != stream->enqueued) return false;
    }
    return true;
  });
  const auto again = state->memory.find(pointer);
  if (again == state->memory.end()) return CUDA_ERROR_INVALID_VALUE;
  release(again);
  return CUDA_SUCCESS;
}

CUresult allocate_async(CUdeviceptr* pointer, std::size_t bytes, CUstream stream) {
  TUTTI_FAKE_ENTER("cuMemAllocAsync", true);
  const Lock lock(state->mutex);
  const StreamRef on = stream_of(stream);
  if (!on) return CUDA_ERROR_INVALID_HANDLE;
  if (on->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;  // the real one makes a node of it
  return add_memory(Kind::pool, bytes, on->device, pointer);
}

CUresult free_async(CUdeviceptr pointer, CUstream stream) {
  TUTTI_FAKE_ENTER("cuMemFreeAsync", true);
  const Lock lock(state->mutex);
  const auto found = state->memory.find(pointer);
  if (found == state->memory.end()) return CUDA_ERROR_INVALID_VALUE;
  if (found->second.kind != Kind::pool && found->second.kind != Kind::device) return CUDA_ERROR_INVALID_VALUE;
  return enqueue(stream_of(stream), [pointer] {
    const Lock inside(state->mutex);
    if (const auto gone = state->memory.find(pointer); gone != state->memory.end()) release(gone);
  });
}

CUresult allocate_host(void** pointer, std::size_t bytes, unsigned /*flags*/) {
  TUTTI_FAKE_ENTER("cuMemHostAlloc", true);
  const Lock lock(state->mutex);
  if (const CUresult error = unsafe_call(); error != CUDA_SUCCESS) return error;
  CUdeviceptr made = 0;
  const CUresult result = add_memory(Kind::pinned, bytes, current()->device, &made);
  *pointer = address(made);
  return result;
}

CUresult free_host(void* pointer) {
  TUTTI_FAKE_ENTER("cuMemFreeHost", true);
  const Lock lock(state->mutex);
  if (const CUresult error = unsafe_call(); error != CUDA_SUCCESS) return error;
  const auto found = state->memory.find(pointer_to(pointer));
  if (found == state->memory.end() || found->second.kind != Kind::pinned) return CUDA_ERROR_INVALID_VALUE;
  release(found);
  return CUDA_SUCCESS;
}

CUresult address_range(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr pointer) {
  TUTTI_FAKE_ENTER("cuMemGetAddressRange", true);
  const Lock lock(state->mutex);
  const auto found = find_memory(pointer);
  if (found == state->memory.end()) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = found->first;
  if (bytes != nullptr) *bytes = found->second.bytes;
  return CUDA_SUCCESS;
}

CUresult memory_info(std::size_t* free, std::size_t* total) {
  TUTTI_FAKE_ENTER("cuMemGetInfo", true);
  const Lock lock(state->mutex);
  *total = state->machine.memory;
  *free = *total - state->devices[static_cast<std::size_t>(current()->device)].allocated;
  return CUDA_SUCCESS;
}

template <class T>
void set(void* to, T value) {
  std::memcpy(to, &value, sizeof(value));
}

struct Range {
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
};

/// Returns the allocation's range, as the real driver does: for memory mapped by hand, the reserved addresses.
Range range_of(std::map<std::uintptr_t, Allocation>::iterator memory) {
  auto reserved = state->reserved.upper_bound(memory->first);
  if (reserved != state->reserved.begin()) {
    --reserved;
    if (memory->first < reserved->first + reserved->second) return {reserved->first, reserved->second};
  }
  return {memory->first, memory->second.bytes};
}

CUresult pointer_attributes(unsigned count, CUpointer_attribute* attributes, void** values, CUdeviceptr pointer) {
  TUTTI_FAKE_ENTER("cuPointerGetAttributes");
  const Lock lock(state->mutex);
  const auto found = find_memory(pointer);
  const bool known = found != state->memory.end();
  const Allocation none;
  const Allocation& a = known ? found->second : none;
  const bool host = a.kind == Kind::pinned;
  const Range range = known ? range_of(found) : Range{};
  for (unsigned i = 0; i < count; ++i) {
    switch (attributes[i]) {
      case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        set(values[i], !known ? 0U : host ? unsigned{CU_MEMORYTYPE_HOST} : unsigned{CU_MEMORYTYPE_DEVICE});
        break;
      case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: set(values[i], known ? a.device : -2); break;
      case CU_POINTER_ATTRIBUTE_IS_MANAGED: set(values[i], known && a.kind == Kind::managed ? 1U : 0U); break;
      case CU_POINTER_ATTRIBUTE_BUFFER_ID: set(values[i], known ? a.id : 0ULL); break;
      case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        set(values[i], known && a.kind == Kind::device && state->machine.ipc ? 1 : 0);
        break;
      case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        set(values[i], known && a.kind == Kind::mapped_file && a.memory->exportable
                           ? std::uint64_t{CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR}
                           : std::uint64_t{0});
        break;
      case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: set(values[i], range.base); break;
      case CU_POINTER_ATTRIBUTE_RANGE_SIZE: set(values[i], range.bytes); break;
      default: return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_SUCCESS;
}

// As the driver reaches it. REQUIRES: the lock is held.
void* reached(CUdeviceptr pointer) {
  const auto found = find_memory(pointer);
  if (found == state->memory.end() || found->second.alias == nullptr) return address(pointer);
  return found->second.alias + (pointer - found->first);
}

CUresult copy_async(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  TUTTI_FAKE_ENTER("cuMemcpyAsync");
  const Lock lock(state->mutex);
  return enqueue(stream_of(stream), [bytes, to = reached(to), from = reached(from)] {
    if (bytes > 0) std::memmove(to, from, bytes);  // the addresses of nothing may be null
  });
}

CUresult hand_out(void* handle, CUdeviceptr pointer, std::size_t bytes, CUmemRangeHandleType type,
                  unsigned long long flags) {
  TUTTI_FAKE_ENTER("cuMemGetHandleForAddressRange", true);
  const Lock lock(state->mutex);
  const auto found = state->memory.find(pointer);
  if (found == state->memory.end() || found->second.kind != Kind::device || bytes != found->second.bytes ||
      bytes % page_bytes() != 0 || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!state->machine.dmabuf) return CUDA_ERROR_NOT_SUPPORTED;
  Allocation& given = found->second;
  if (given.alias == nullptr) {
    void* alias = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, given.memory->file, 0);
    if (alias == MAP_FAILED || mprotect(address(pointer), bytes, PROT_NONE) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
    given.alias = static_cast<std::byte*>(alias);
  }
  const int descriptor = fcntl(given.memory->file, F_DUPFD_CLOEXEC, 0);
  std::memcpy(handle, &descriptor, sizeof descriptor);
  return descriptor < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult flush_writes(CUflushGPUDirectRDMAWritesTarget /*target*/, CUflushGPUDirectRDMAWritesScope /*scope*/) {
  TUTTI_FAKE_ENTER("cuFlushGPUDirectRDMAWrites", true);
  return CUDA_SUCCESS;
}

CUresult fill_async(CUdeviceptr to, unsigned char value, std::size_t bytes, CUstream stream) {
  TUTTI_FAKE_ENTER("cuMemsetD8Async");
  const Lock lock(state->mutex);
  return enqueue(stream_of(stream), [=] { std::memset(address(to), value, bytes); });
}

}  // namespace

void fill_memory(device::Driver& table) {
  table.MemAlloc = allocate;
  table.MemFree = free_memory;
  table.MemAllocAsync = allocate_async;
  table.MemFreeAsync = free_async;
  table.MemHostAlloc = allocate_host;
  table.MemFreeHost = free_host;
  table.MemGetAddressRange = address_range;
  table.MemGetInfo = memory_info;
  table.MemGetHandleForAddressRange = hand_out;
  table.FlushGPUDirectRDMAWrites = flush_writes;
  table.PointerGetAttributes = pointer_attributes;
  table.MemcpyAsync = copy_async;
  table.MemsetD8Async = fill_async;
}

}  // namespace fake

CUdeviceptr FakeDriver::allocate_managed(std::size_t bytes) {
  const fake::Lock lock(fake::state->mutex);
  CUdeviceptr pointer = 0;
  (void)fake::add_memory(fake::Kind::managed, bytes, 0, &pointer);
  return pointer;
}

}  // namespace tutti::testing
#endif
