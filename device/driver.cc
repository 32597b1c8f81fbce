#if TUTTI_HAS_CUDA
#include "device/driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <atomic>
#include <map>
#include <mutex>
#include <set>

#include "device/driver_testing.h"
#include "device/loading.h"

namespace tutti::device {

namespace {

std::atomic<const Driver*> table_for_tests{nullptr};
std::atomic<std::uint64_t> generation{0};
std::atomic<const Driver*> ready{nullptr};  // the table, once it is initialised

/// Facts that are found once for each table.
struct Cache {
  std::mutex mutex;
  std::map<int, CUcontext> contexts;               // guarded by mutex
  std::set<std::pair<int, int>> peers;             // by table: (device, peer) whose access is enabled
  std::map<const Driver*, Status> initialisation;  // by table
};

Cache& cache() {
  static auto* cache = new Cache;  // outlives static destructors that free device memory
  return *cache;
}

struct Loaded {
  Driver table;
  Status status;
  Loaded() : status(internal::load_driver("libcuda.so.1", table)) {}
};

const Loaded& loaded() {
  static const auto* loaded = new Loaded;
  return *loaded;
}

Status initialise(const Driver& table) {
  const CUresult result = table.Init(0);
  if (result == CUDA_ERROR_NO_DEVICE) return unsupported("device memory: the CUDA driver finds no GPU");
  if (result != CUDA_SUCCESS) {
    const char* name = nullptr;
    (void)table.GetErrorName(result, &name);
    return unsupported(fmt::format("device memory: the CUDA driver does not start (cuInit gives {})",
                                   name != nullptr ? name : std::to_string(result)));
  }
  int version = 0;
  TUTTI_TRY(check(table.DriverGetVersion(&version), "cuDriverGetVersion"));
  if (version >= kOldestDriver) return {};
  return unsupported(fmt::format("device memory: the CUDA driver serves CUDA {}.{}, but {}.{} or newer is needed",
                                 version / 1000, version % 1000 / 10, kOldestDriver / 1000, kOldestDriver % 1000 / 10));
}

}  // namespace

Status internal::load_driver(const char* library, Driver& table) {
  // Never closed: contexts and the driver's threads stay until the process ends.
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return unsupported(fmt::format("device memory: this machine has no CUDA driver ({} cannot be loaded)", library));
  }
  const auto get = reinterpret_cast<PFN_cuGetProcAddress_v12000>(dlsym(handle, "cuGetProcAddress_v2"));
  if (get == nullptr) {
    return unsupported(fmt::format("device memory: the CUDA driver is older than CUDA {}.{}", kOldestDriver / 1000,
                                   kOldestDriver % 1000 / 10));
  }
  const auto find = [&](const char* name, int version, void** function) -> Status {
    const CUresult result = get(name, function, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, nullptr);
    if (result == CUDA_SUCCESS && *function != nullptr) return {};
    return unsupported(fmt::format("device memory: the CUDA driver has no {}", name));
  };
#define TUTTI_DRIVER_FIND(name, version) TUTTI_TRY(find("cu" #name, version, reinterpret_cast<void**>(&table.name)));
  TUTTI_DRIVER_FUNCTIONS(TUTTI_DRIVER_FIND)
#undef TUTTI_DRIVER_FIND
  return {};
}

const Driver* loaded_driver() {
  if (const Driver* table = table_for_tests.load(std::memory_order_acquire)) return table;
  return loaded().status.ok() ? &loaded().table : nullptr;
}

Result<const Driver*> driver() {
  if (const Driver* table = ready.load(std::memory_order_acquire)) return table;
  const Driver* table = loaded_driver();
  if (table == nullptr) return loaded().status;
  Cache& known = cache();
  const std::lock_guard lock(known.mutex);
  auto found = known.initialisation.find(table);
  if (found == known.initialisation.end()) found = known.initialisation.emplace(table, initialise(*table)).first;
  if (!found->second.ok()) return found->second;
  ready.store(table, std::memory_order_release);
  return table;
}

void set_driver_for_tests(const Driver* table) {
  Cache& known = cache();
  const std::lock_guard lock(known.mutex);
  known.contexts.clear();
  known.peers.clear();
  known.initialisation.clear();
  generation.fetch_add(1);
  ready.store(nullptr, std::memory_order_release);
  table_for_tests.store(table, std::memory_order_release);
  internal::forget_presence();
}

std::uint64_t driver_generation() { return generation.load(); }

Status check(CUresult result, const char* call, const std::string& where) {
  if (result == CUDA_SUCCESS) return {};
  const char* name = nullptr;
  const char* text = nullptr;
  if (const Driver* table = loaded_driver()) {
    (void)table->GetErrorName(result, &name);
    (void)table->GetErrorString(result, &text);
  }
  std::string message = fmt::format("{} failed{}{}: {}", call, where.empty() ? "" : " on ", where,
                                    name != nullptr ? name : fmt::format("error {}", static_cast<int>(result)));
  if (text != nullptr) message += fmt::format(" ({})", text);
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY: return {Code::memory_limit, std::move(message)};
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION: return unsupported(std::move(message));
    default: return {Code::system, std::move(message)};
  }
}

namespace {

Result<CUdevice> device_of(const Driver& cuda, int ordinal) {
  CUdevice device = 0;
  const CUresult result = cuda.DeviceGet(&device, ordinal);
  if (result == CUDA_ERROR_INVALID_DEVICE) {
    int count = 0;
    TUTTI_TRY(check(cuda.DeviceGetCount(&count), "cuDeviceGetCount"));
    return invalid_argument(fmt::format("GPU {} was asked for, but the machine shows {}", ordinal, count));
  }
  TUTTI_TRY(check(result, "cuDeviceGet"));
  return device;
}

std::string where(int device) { return fmt::format("GPU {}", device); }

}  // namespace

Result<int> device_count() {
  TUTTI_ASSIGN(const Driver* cuda, driver());
  int count = 0;
  TUTTI_TRY(check(cuda->DeviceGetCount(&count), "cuDeviceGetCount"));
  return count;
}

Result<int> attribute(int device, CUdevice_attribute which) {
  TUTTI_ASSIGN(const Driver* cuda, driver());
  TUTTI_ASSIGN(const CUdevice handle, device_of(*cuda, device));
  int value = 0;
  TUTTI_TRY(check(cuda->DeviceGetAttribute(&value, which, handle), "cuDeviceGetAttribute", where(device)));
  return value;
}

bool under_mps(int device) {
  const Result<int> enabled = attribute(device, CU_DEVICE_ATTRIBUTE_MPS_ENABLED);
  return enabled.ok() && enabled.value() != 0;
}

Result<bool> orders_direct_writes(int device) {
  TUTTI_ASSIGN(const int hands_out, attribute(device, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED));
  if (hands_out == 0) {
    return unsupported(name_of(device) + "'s driver does not hand its memory to other devices (no dmabuf)");
  }
  TUTTI_ASSIGN(const int ordering, attribute(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING));
  if (ordering >= CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER) return true;
  TUTTI_ASSIGN(const int flushes, attribute(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS));
  if ((flushes & CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST) != 0) return false;
  return unsupported(name_of(device) + " does not order what other devices write, and its driver cannot wait for it");
}

Result<CUuuid> uuid_of(int device) {
  TUTTI_ASSIGN(const Driver* cuda, driver());
  TUTTI_ASSIGN(const CUdevice handle, device_of(*cuda, device));
  CUuuid uuid{};
  TUTTI_TRY(check(cuda->DeviceGetUuid(&uuid, handle), "cuDeviceGetUuid", where(device)));
  return uuid;
}

std::string name_of(int device) {
  const Result<const Driver*> cuda = driver();
  char name[256] = {};
  CUdevice handle = 0;
  if (!cuda.ok() || cuda.value()->DeviceGet(&handle, device) != CUDA_SUCCESS ||
      cuda.value()->DeviceGetName(name, sizeof(name) - 1, handle) != CUDA_SUCCESS) {
    return where(device);
  }
  return fmt::format("GPU {} ({})", device, name);
}

Result<int> current_device() {
  TUTTI_ASSIGN(const Driver* cuda, driver());
  CUcontext context = nullptr;
  TUTTI_TRY(check(cuda->CtxGetCurrent(&context), "cuCtxGetCurrent"));
  if (context == nullptr) return -1;
  CUdevice device = 0;
  TUTTI_TRY(check(cuda->CtxGetDevice(&device), "cuCtxGetDevice"));
  return static_cast<int>(device);
}

Result<CUcontext> primary_context(int device) {
  TUTTI_ASSIGN(const Driver* cuda, driver());
  Cache& known = cache();
  const std::lock_guard lock(known.mutex);
  if (const auto found = known.contexts.find(device); found != known.contexts.end()) return found->second;
  TUTTI_ASSIGN(const CUdevice handle, device_of(*cuda, device));
  CUcontext context = nullptr;
  TUTTI_TRY(check(cuda->DevicePrimaryCtxRetain(&context, handle), "cuDevicePrimaryCtxRetain", where(device)));
  known.contexts.emplace(device, context);
  return context;
}

CurrentContext::~CurrentContext() {
  CUcontext popped = nullptr;
  if (driver_ != nullptr) (void)driver_->CtxPopCurrent(&popped);
}

Result<CurrentContext> enter(int device) {
  TUTTI_ASSIGN(const Driver* cuda, driver());
  TUTTI_ASSIGN(CUcontext context, primary_context(device));
  TUTTI_TRY(check(cuda->CtxPushCurrent(context), "cuCtxPushCurrent", where(device)));
  return CurrentContext(cuda);
}

UncapturedCalls::UncapturedCalls(const Driver& driver) : driver_(driver) {
  (void)driver_.ThreadExchangeStreamCaptureMode(&mode_);
}

UncapturedCalls::~UncapturedCalls() { (void)driver_.ThreadExchangeStreamCaptureMode(&mode_); }

Result<bool> enable_peer_access(int device, int peer) {
  if (device == peer) return true;
  TUTTI_ASSIGN(const Driver* cuda, driver());
  {
    const std::lock_guard lock(cache().mutex);
    if (cache().peers.count({device, peer}) != 0) return true;
  }
  TUTTI_ASSIGN(const CUdevice from, device_of(*cuda, device));
  TUTTI_ASSIGN(const CUdevice to, device_of(*cuda, peer));
  int can = 0;
  TUTTI_TRY(check(cuda->DeviceCanAccessPeer(&can, from, to), "cuDeviceCanAccessPeer", where(device)));
  if (can == 0) return false;
  TUTTI_ASSIGN(CUcontext peer_context, primary_context(peer));
  TUTTI_ASSIGN(const CurrentContext current, enter(device));
  const CUresult result = cuda->CtxEnablePeerAccess(peer_context, 0);
  if (result != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) {
    TUTTI_TRY(check(result, "cuCtxEnablePeerAccess", where(device)));
  }
  const std::lock_guard lock(cache().mutex);
  cache().peers.emplace(device, peer);
  return true;
}

}  // namespace tutti::device
#endif
