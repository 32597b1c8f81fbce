// Memory of other processes: legacy handles, and physical memory that is mapped by hand.
#if TUTTI_HAS_CUDA
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "base/even_share.h"
#include "base/pages.h"
#include "tests/support/fake_cuda/state.h"

namespace tutti::testing::fake {

namespace {

constexpr std::size_t kGranularity = std::size_t{2} << 20;

struct IpcHandle {  // what is in a CUipcMemHandle
  char magic[8];
  std::int64_t pid;
  std::int64_t file;
  std::uint64_t inode;
  std::uint64_t bytes;
  std::int64_t device;
};
constexpr char kMagic[8] = "fakeipc";
static_assert(sizeof(IpcHandle) <= sizeof(CUipcMemHandle));

std::uint64_t inode_of(int file) {
  struct stat info {};
  return fstat(file, &info) == 0 ? info.st_ino : 0;
}

CUresult get_handle(CUipcMemHandle* handle, CUdeviceptr pointer) {
  TUTTI_FAKE_ENTER("cuIpcGetMemHandle", true);
  const Lock lock(state->mutex);
  if (!state->machine.ipc) return CUDA_ERROR_NOT_SUPPORTED;
  const auto found = find_memory(pointer);
  if (found == state->memory.end() || found->second.kind != Kind::device) return CUDA_ERROR_INVALID_VALUE;
  const Allocation& a = found->second;
  IpcHandle filled{
      .pid = getpid(), .file = a.memory->file, .inode = inode_of(a.memory->file), .bytes = a.bytes, .device = a.device};
  std::memcpy(filled.magic, kMagic, sizeof(kMagic));
  *handle = {};
  std::memcpy(handle, &filled, sizeof(filled));
  return CUDA_SUCCESS;
}

CUresult open_handle(CUdeviceptr* pointer, CUipcMemHandle handle, unsigned flags) {
  TUTTI_FAKE_ENTER("cuIpcOpenMemHandle", true);
  const Lock lock(state->mutex);
  if (const CUresult error = unsafe_call(); error != CUDA_SUCCESS) return error;
  IpcHandle told{};
  std::memcpy(&told, &handle, sizeof(told));
  if (!state->machine.ipc) return CUDA_ERROR_NOT_SUPPORTED;
  if (std::memcmp(told.magic, kMagic, sizeof(kMagic)) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (told.pid == getpid()) return CUDA_ERROR_INVALID_CONTEXT;  // not in the process that it comes from
  if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
  if (told.device != current()->device && !state->machine.peer_access) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  for (auto& [base, known] : state->memory) {
    if (known.kind == Kind::ipc && known.opened == told.inode && known.device == current()->device) {
      ++known.opens;
      *pointer = base;
      return CUDA_SUCCESS;
    }
  }
  const std::string path = "/proc/" + std::to_string(told.pid) + "/fd/" + std::to_string(told.file);
  auto memory = std::make_shared<Memory>();
  memory->file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (memory->file < 0 || inode_of(memory->file) != told.inode) return CUDA_ERROR_MAP_FAILED;
  void* base = mmap(nullptr, round_up(told.bytes, page_bytes()), PROT_READ | PROT_WRITE, MAP_SHARED, memory->file, 0);
  if (base == MAP_FAILED) return CUDA_ERROR_MAP_FAILED;
  *pointer = reinterpret_cast<CUdeviceptr>(base);
  state->memory[*pointer] = {.kind = Kind::ipc,
                             .bytes = told.bytes,
                             .device = current()->device,
                             .id = state->next_id++,
                             .memory = memory,
                             .opened = told.inode,
                             .opens = 1};
  return CUDA_SUCCESS;
}

CUresult close_handle(CUdeviceptr pointer) {
  TUTTI_FAKE_ENTER("cuIpcCloseMemHandle", true);
  const Lock lock(state->mutex);
  const auto found = state->memory.find(pointer);
  if (found == state->memory.end() || found->second.kind != Kind::ipc) return CUDA_ERROR_INVALID_VALUE;
  if (--found->second.opens > 0) return CUDA_SUCCESS;
  munmap(address(pointer), round_up(found->second.bytes, page_bytes()));
  state->memory.erase(found);
  return CUDA_SUCCESS;
}

// Physical memory. A handle is a shared_ptr of its own.
using Reference = std::shared_ptr<Memory>;

CUresult granularity(std::size_t* bytes, const CUmemAllocationProp* /*what*/, CUmemAllocationGranularity_flags /*f*/) {
  TUTTI_FAKE_ENTER("cuMemGetAllocationGranularity");
  *bytes = kGranularity;
  return CUDA_SUCCESS;
}

CUresult reserve(CUdeviceptr* pointer, std::size_t bytes, std::size_t /*alignment*/, CUdeviceptr /*at*/,
                 unsigned long long /*flags*/) {
  TUTTI_FAKE_ENTER("cuMemAddressReserve");
  const Lock lock(state->mutex);
  if (bytes == 0 || bytes % kGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
  void* base = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *pointer = reinterpret_cast<CUdeviceptr>(base);
  state->reserved[*pointer] = bytes;
  return CUDA_SUCCESS;
}

CUresult unreserve(CUdeviceptr pointer, std::size_t bytes) {
  TUTTI_FAKE_ENTER("cuMemAddressFree");
  const Lock lock(state->mutex);
  const auto found = state->reserved.find(pointer);
  if (found == state->reserved.end() || found->second != bytes) return CUDA_ERROR_INVALID_VALUE;
  if (find_memory(pointer) != state->memory.end()) return CUDA_ERROR_INVALID_VALUE;  // still mapped
  munmap(address(pointer), bytes);
  state->reserved.erase(found);
  return CUDA_SUCCESS;
}

CUmemGenericAllocationHandle handle_to(Reference memory) {
  return reinterpret_cast<CUmemGenericAllocationHandle>(new Reference(std::move(memory)));
}
Reference& memory_of(CUmemGenericAllocationHandle handle) { return *reinterpret_cast<Reference*>(handle); }

CUresult create(CUmemGenericAllocationHandle* handle, std::size_t bytes, const CUmemAllocationProp* what,
                unsigned long long /*flags*/) {
  TUTTI_FAKE_ENTER("cuMemCreate");
  const Lock lock(state->mutex);
  if (bytes == 0 || bytes % kGranularity != 0 || what->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto memory = std::make_shared<Memory>();
  memory->bytes = bytes;
  memory->device = what->location.id;
  memory->exportable = (what->requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0;
  memory->file = memfd_create("tutti fake", MFD_CLOEXEC);
  if (memory->file < 0 || ftruncate(memory->file, static_cast<off_t>(bytes)) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = handle_to(std::move(memory));
  return CUDA_SUCCESS;
}

CUresult release(CUmemGenericAllocationHandle handle) {
  TUTTI_FAKE_ENTER("cuMemRelease");
  const Lock lock(state->mutex);
  delete &memory_of(handle);
  return CUDA_SUCCESS;
}

CUresult map(CUdeviceptr pointer, std::size_t bytes, std::size_t offset, CUmemGenericAllocationHandle handle,
             unsigned long long /*flags*/) {
  TUTTI_FAKE_ENTER("cuMemMap");
  const Lock lock(state->mutex);
  const Reference& memory = memory_of(handle);
  if (offset != 0 || bytes != memory->bytes || find_memory(pointer) != state->memory.end()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (mmap(address(pointer), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->file, 0) == MAP_FAILED) {
    return CUDA_ERROR_MAP_FAILED;
  }
  state->memory[pointer] = {
      .kind = Kind::mapped_file, .bytes = bytes, .device = memory->device, .id = state->next_id++, .memory = memory};
  return CUDA_SUCCESS;
}

CUresult unmap(CUdeviceptr pointer, std::size_t bytes) {
  TUTTI_FAKE_ENTER("cuMemUnmap");
  const Lock lock(state->mutex);
  const auto found = state->memory.find(pointer);
  if (found == state->memory.end() || found->second.kind != Kind::mapped_file || found->second.bytes != bytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  (void)mmap(address(pointer), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  state->memory.erase(found);
  return CUDA_SUCCESS;
}

CUresult set_access(CUdeviceptr pointer, std::size_t bytes, const CUmemAccessDesc* accesses, std::size_t count) {
  TUTTI_FAKE_ENTER("cuMemSetAccess");
  const Lock lock(state->mutex);
  const auto found = state->memory.find(pointer);
  if (found == state->memory.end()) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < count; ++i) {
    if (accesses[i].location.id != found->second.device && !state->machine.peer_access)
      return CUDA_ERROR_INVALID_DEVICE;
    if (accesses[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
      mprotect(address(pointer), bytes, PROT_READ | PROT_WRITE);
  }
  return CUDA_SUCCESS;
}

CUresult retain(CUmemGenericAllocationHandle* handle, void* pointer) {
  TUTTI_FAKE_ENTER("cuMemRetainAllocationHandle");
  const Lock lock(state->mutex);
  const auto found = find_memory(reinterpret_cast<CUdeviceptr>(pointer));
  if (found == state->memory.end() || found->second.kind != Kind::mapped_file) return CUDA_ERROR_INVALID_VALUE;
  *handle = handle_to(found->second.memory);
  return CUDA_SUCCESS;
}

CUresult export_handle(void* shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                       unsigned long long /*flags*/) {
  TUTTI_FAKE_ENTER("cuMemExportToShareableHandle");
  const Lock lock(state->mutex);
  const Reference& memory = memory_of(handle);
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !memory->exportable) return CUDA_ERROR_INVALID_VALUE;
  const int copy = fcntl(memory->file, F_DUPFD_CLOEXEC, 0);
  std::memcpy(shareable, &copy, sizeof(copy));
  return copy < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

CUresult import_handle(CUmemGenericAllocationHandle* handle, void* shareable, CUmemAllocationHandleType type) {
  TUTTI_FAKE_ENTER("cuMemImportFromShareableHandle");
  const Lock lock(state->mutex);
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  const auto file = static_cast<int>(reinterpret_cast<std::intptr_t>(shareable));
  struct stat info {};
  if (fstat(file, &info) != 0 || info.st_size <= 0) return CUDA_ERROR_INVALID_VALUE;
  auto memory = std::make_shared<Memory>();
  memory->bytes = static_cast<std::size_t>(info.st_size);
  memory->exportable = true;
  memory->file = fcntl(file, F_DUPFD_CLOEXEC, 0);
  *handle = handle_to(std::move(memory));
  return CUDA_SUCCESS;
}

}  // namespace

void fill_sharing(device::Driver& table) {
  table.IpcGetMemHandle = get_handle;
  table.IpcOpenMemHandle = open_handle;
  table.IpcCloseMemHandle = close_handle;
  table.MemGetAllocationGranularity = granularity;
  table.MemAddressReserve = reserve;
  table.MemAddressFree = unreserve;
  table.MemCreate = create;
  table.MemRelease = release;
  table.MemMap = map;
  table.MemUnmap = unmap;
  table.MemSetAccess = set_access;
  table.MemRetainAllocationHandle = retain;
  table.MemExportToShareableHandle = export_handle;
  table.MemImportFromShareableHandle = import_handle;
}

}  // namespace tutti::testing::fake
#endif
