#if TUTTI_HAS_CUDA
#include "tests/support/fake_cuda/driver.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "base/check.h"
#include "device/driver_testing.h"
#include "tests/support/fake_cuda/state.h"

namespace tutti::testing {

namespace fake {

State* state = nullptr;
thread_local std::vector<Context*> context_stack;

CUresult enter(const char* call, bool needs_context) {
  if (state == nullptr) return CUDA_ERROR_DEINITIALIZED;
  const Lock lock(state->mutex);
  ++state->calls[call];
  if (const auto found = state->failures.find(call); found != state->failures.end()) {
    Failure& failure = found->second;
    if (--failure.after <= 0) {
      const CUresult error = failure.error;
      if (--failure.times <= 0) state->failures.erase(found);
      return error;
    }
  }
  if (!state->initialised) return CUDA_ERROR_NOT_INITIALIZED;
  const Context* context = current();
  if (needs_context && context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) return state->devices[static_cast<std::size_t>(context->device)].fault;
  return CUDA_SUCCESS;
}

namespace {

thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

struct ErrorName {
  CUresult error;
  const char* name;
  const char* text;
};
constexpr ErrorName kErrors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_MAP_FAILED, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
     "peer access is not supported between these two devices"},
    {CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
     "peer access is already enabled"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking stream"},
};

const ErrorName* find_error(CUresult error) {
  for (const ErrorName& known : kErrors) {
    if (known.error == error) return &known;
  }
  return nullptr;
}

CUresult init(unsigned /*flags*/) {
  const CUresult error = enter("cuInit");
  if (error != CUDA_SUCCESS && error != CUDA_ERROR_NOT_INITIALIZED) return error;
  const Lock lock(state->mutex);
  if (state->machine.devices == 0) return CUDA_ERROR_NO_DEVICE;
  state->initialised = true;
  return CUDA_SUCCESS;
}

CUresult driver_version(int* version) {
  *version = state->machine.driver_version;
  return CUDA_SUCCESS;
}

CUresult error_name(CUresult error, const char** name) {
  const ErrorName* known = find_error(error);
  *name = known == nullptr ? nullptr : known->name;
  return known == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult error_string(CUresult error, const char** text) {
  const ErrorName* known = find_error(error);
  *text = known == nullptr ? nullptr : known->text;
  return known == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult device_count(int* count) {
  TUTTI_FAKE_ENTER("cuDeviceGetCount");
  *count = state->machine.devices;
  return CUDA_SUCCESS;
}

bool is_device(int device) { return device >= 0 && device < state->machine.devices; }

CUresult device_get(CUdevice* device, int ordinal) {
  TUTTI_FAKE_ENTER("cuDeviceGet");
  if (!is_device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult device_name(char* name, int bytes, CUdevice device) {
  TUTTI_FAKE_ENTER("cuDeviceGetName");
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(name, static_cast<std::size_t>(bytes), "Fake GPU");
  return CUDA_SUCCESS;
}

CUresult device_uuid(CUuuid* uuid, CUdevice device) {
  TUTTI_FAKE_ENTER("cuDeviceGetUuid");
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::memcpy(uuid->bytes, "tutti fake gpu  ", sizeof(uuid->bytes));
  uuid->bytes[15] = static_cast<char>(device);
  return CUDA_SUCCESS;
}

CUresult device_attribute(int* value, CUdevice_attribute which, CUdevice device) {
  TUTTI_FAKE_ENTER("cuDeviceGetAttribute");
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  const FakeMachine& machine = state->machine;
  switch (which) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = machine.multiprocessors; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: *value = 48 << 10; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = 227 << 10; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = 0; break;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: *value = 2'000'000; break;  // kHz
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: *value = 2000; break;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: *value = 0x10 + device; break;
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS: *value = machine.wait_values ? 1 : 0; break;
    case CU_DEVICE_ATTRIBUTE_MPS_ENABLED: *value = machine.mps ? 1 : 0; break;
    case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED: *value = machine.dmabuf ? 1 : 0; break;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING:
      *value = machine.ordered ? CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER : CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE;
      break;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS:
      *value = CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST;
      break;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING: *value = 1; break;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: *value = 1; break;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: *value = 1; break;
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: *value = 1; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE: *value = CU_COMPUTEMODE_DEFAULT; break;
    default: *value = 0; break;
  }
  return CUDA_SUCCESS;
}

CUresult device_memory(std::size_t* bytes, CUdevice device) {
  TUTTI_FAKE_ENTER("cuDeviceTotalMem");
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = state->machine.memory;
  return CUDA_SUCCESS;
}

CUresult device_bus_id(char* id, int bytes, CUdevice device) {
  TUTTI_FAKE_ENTER("cuDeviceGetPCIBusId");
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(id, static_cast<std::size_t>(bytes), "0000:%02X:00.0", 0x10U + static_cast<unsigned>(device));
  return CUDA_SUCCESS;
}

CUresult can_access(int* can, CUdevice device, CUdevice peer) {
  TUTTI_FAKE_ENTER("cuDeviceCanAccessPeer");
  if (!is_device(device) || !is_device(peer)) return CUDA_ERROR_INVALID_DEVICE;
  *can = device != peer && state->machine.peer_access ? 1 : 0;
  return CUDA_SUCCESS;
}

CUcontext handle_of(Context* context) { return reinterpret_cast<CUcontext>(context); }

CUresult retain_primary(CUcontext* context, CUdevice device) {
  TUTTI_FAKE_ENTER("cuDevicePrimaryCtxRetain");
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  *context = handle_of(&state->devices[static_cast<std::size_t>(device)].context);
  return CUDA_SUCCESS;
}

CUresult get_current(CUcontext* context) {
  TUTTI_FAKE_ENTER("cuCtxGetCurrent");
  *context = handle_of(current());
  return CUDA_SUCCESS;
}

CUresult push_current(CUcontext context) {
  TUTTI_FAKE_ENTER("cuCtxPushCurrent");
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  context_stack.push_back(reinterpret_cast<Context*>(context));
  return CUDA_SUCCESS;
}

CUresult pop_current(CUcontext* context) {
  if (state == nullptr || context_stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = handle_of(current());
  context_stack.pop_back();
  return CUDA_SUCCESS;
}

CUresult context_device(CUdevice* device) {
  TUTTI_FAKE_ENTER("cuCtxGetDevice", true);
  *device = current()->device;
  return CUDA_SUCCESS;
}

CUresult context_synchronize() {
  TUTTI_FAKE_ENTER("cuCtxSynchronize", true);
  Lock lock(state->mutex);
  if (const CUresult error = unsafe_call(); error != CUDA_SUCCESS) return error;
  const int device = current()->device;
  state->changed.wait(lock, [&] {
    return std::all_of(state->streams.begin(), state->streams.end(),
                       [&](const StreamRef& s) { return s->device != device || s->done == s->enqueued; });
  });
  return state->devices[static_cast<std::size_t>(device)].fault;
}

CUresult enable_peer(CUcontext peer, unsigned /*flags*/) {
  TUTTI_FAKE_ENTER("cuCtxEnablePeerAccess", true);
  const Lock lock(state->mutex);
  const int to = reinterpret_cast<Context*>(peer)->device;
  if (to == current()->device) return CUDA_ERROR_INVALID_DEVICE;
  if (!state->machine.peer_access) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  return state->peers.emplace(current()->device, to).second ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

CUresult exchange_mode(CUstreamCaptureMode* mode) {
  TUTTI_FAKE_ENTER("cuThreadExchangeStreamCaptureMode");
  std::swap(*mode, thread_mode);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult unsafe_call() {
  if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  for (const CaptureRef& capture : state->captures) {
    const bool own = capture->thread == std::this_thread::get_id();
    const bool forbids =
        (own && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED) ||
        (!own && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
    if (!forbids) continue;
    capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return CUDA_SUCCESS;
}

void fill_devices(device::Driver& table) {
  table.Init = init;
  table.DriverGetVersion = driver_version;
  table.GetErrorName = error_name;
  table.GetErrorString = error_string;
  table.DeviceGetCount = device_count;
  table.DeviceGet = device_get;
  table.DeviceGetName = device_name;
  table.DeviceGetUuid = device_uuid;
  table.DeviceGetAttribute = device_attribute;
  table.DeviceTotalMem = device_memory;
  table.DeviceGetPCIBusId = device_bus_id;
  table.DeviceCanAccessPeer = can_access;
  table.DevicePrimaryCtxRetain = retain_primary;
  table.CtxGetCurrent = get_current;
  table.CtxPushCurrent = push_current;
  table.CtxPopCurrent = pop_current;
  table.CtxGetDevice = context_device;
  table.CtxSynchronize = context_synchronize;
  table.CtxEnablePeerAccess = enable_peer;
  table.ThreadExchangeStreamCaptureMode = exchange_mode;
}

}  // namespace fake

using fake::Lock;
using fake::state;

FakeDriver::FakeDriver(const FakeMachine& machine) {
  TUTTI_CHECK(state == nullptr);
  state = new fake::State;
  state->machine = machine;
  state->devices.resize(static_cast<std::size_t>(machine.devices));
  for (int d = 0; d < machine.devices; ++d) state->devices[static_cast<std::size_t>(d)].context.device = d;
  fake::fill_devices(state->table);
  fake::fill_memory(state->table);
  fake::fill_sharing(state->table);
  fake::fill_streams(state->table);
  fake::fill_graphs(state->table);
  fake::fill_kernels(state->table);
#define TUTTI_FAKE_FILLED(name, version) TUTTI_CHECK(state->table.name != nullptr);
  TUTTI_DRIVER_FUNCTIONS(TUTTI_FAKE_FILLED)
#undef TUTTI_FAKE_FILLED
  device::set_driver_for_tests(&state->table);
}

FakeDriver::~FakeDriver() {
  Lock lock(state->mutex);
  const std::vector<fake::StreamRef> streams(state->streams.begin(), state->streams.end());
  lock.unlock();
  for (const fake::StreamRef& stream : streams) fake::end_stream(stream);
  lock.lock();
  state->ends = true;
  state->changed.notify_all();
  lock.unlock();
  for (std::thread& worker : state->workers) worker.join();
  device::set_driver_for_tests(nullptr);
  fake::context_stack.clear();
  delete std::exchange(state, nullptr);
}

const device::Driver& FakeDriver::table() const { return state->table; }

void FakeDriver::add_kernel(const std::string& name, std::vector<std::size_t> sizes, Body body) {
  const Lock lock(state->mutex);
  state->kernels[name] = {.name = name, .sizes = std::move(sizes), .body = std::move(body)};
}

void FakeDriver::fail(const std::string& call, CUresult error, int after, int times) {
  const Lock lock(state->mutex);
  state->failures[call] = {error, after, times};
}

int FakeDriver::calls(const std::string& call) const {
  const Lock lock(state->mutex);
  const auto found = state->calls.find(call);
  return found == state->calls.end() ? 0 : found->second;
}

void FakeDriver::fault(int device, CUresult error) {
  const Lock lock(state->mutex);
  state->devices[static_cast<std::size_t>(device)].fault = error;
  state->changed.notify_all();
}

std::size_t FakeDriver::allocated(int device) const {
  const Lock lock(state->mutex);
  return state->devices[static_cast<std::size_t>(device)].allocated;
}

int FakeDriver::mapped() const {
  const Lock lock(state->mutex);
  return static_cast<int>(std::count_if(state->memory.begin(), state->memory.end(),
                                        [](const auto& entry) { return entry.second.kind == fake::Kind::ipc; }));
}

int FakeDriver::resident_most(int device) const {
  const Lock lock(state->mutex);
  return state->devices[static_cast<std::size_t>(device)].resident_most;
}

bool FakeDriver::peer_enabled(int device, int peer) const {
  const Lock lock(state->mutex);
  return state->peers.count({device, peer}) != 0;
}

}  // namespace tutti::testing
#endif
