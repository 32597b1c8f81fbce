// The CUDA driver, found at run time: a table of the functions that Tutti uses, with error texts and the
// devices' primary contexts. Nothing links to libcuda, so the library loads on machines without a driver.
//
//   TUTTI_ASSIGN(const device::Driver* cuda, device::driver());
//   TUTTI_ASSIGN(device::CurrentContext current, device::enter(0));           // GPU 0's primary context, until the end
//   CUdeviceptr memory = 0;
//   TUTTI_TRY(device::check(cuda->MemAlloc(&memory, bytes), "cuMemAlloc"));   // "cuMemAlloc failed: CUDA_ERROR_..."
//
// Works with programs that use the CUDA runtime: the same primary contexts, CUstream is cudaStream_t, and the
// default streams are the runtime's (null and 1: legacy, 2: per thread).
//
// Threads: any.
// Source: CUDA driver API reference, 13.0; each function in the version that the table names.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include <cstdint>
#include <string>
#include <utility>

#include "base/status.h"

namespace tutti::device {

/// Name without "cu", and the CUDA version (1000 * major + 10 * minor) in which it got the form that is used here.
#define TUTTI_DRIVER_FUNCTIONS(X)           \
  X(Init, 2000)                             \
  X(DriverGetVersion, 2020)                 \
  X(GetErrorName, 6000)                     \
  X(GetErrorString, 6000)                   \
  /* Devices and contexts. */               \
  X(DeviceGetCount, 2000)                   \
  X(DeviceGet, 2000)                        \
  X(DeviceGetName, 2000)                    \
  X(DeviceGetUuid, 11040)                   \
  X(DeviceGetAttribute, 2000)               \
  X(DeviceTotalMem, 3020)                   \
  X(DeviceGetPCIBusId, 4010)                \
  X(DeviceCanAccessPeer, 4000)              \
  X(DevicePrimaryCtxRetain, 7000)           \
  X(CtxGetCurrent, 4000)                    \
  X(CtxPushCurrent, 4000)                   \
  X(CtxPopCurrent, 4000)                    \
  X(CtxGetDevice, 2000)                     \
  X(CtxSynchronize, 2000)                   \
  X(CtxEnablePeerAccess, 4000)              \
  /* Memory. */                             \
  X(MemAlloc, 3020)                         \
  X(MemFree, 3020)                          \
  X(MemAllocAsync, 11020)                   \
  X(MemFreeAsync, 11020)                    \
  X(MemHostAlloc, 2020)                     \
  X(MemFreeHost, 2000)                      \
  X(MemGetAddressRange, 3020)               \
  X(MemGetInfo, 3020)                       \
  X(MemGetHandleForAddressRange, 11070)     \
  X(FlushGPUDirectRDMAWrites, 11030)        \
  X(PointerGetAttributes, 7000)             \
  X(MemcpyAsync, 4000)                      \
  X(MemsetD8Async, 3020)                    \
  /* Memory of other processes. */          \
  X(IpcGetMemHandle, 4010)                  \
  X(IpcOpenMemHandle, 11000)                \
  X(IpcCloseMemHandle, 4010)                \
  X(MemGetAllocationGranularity, 10020)     \
  X(MemAddressReserve, 10020)               \
  X(MemAddressFree, 10020)                  \
  X(MemCreate, 10020)                       \
  X(MemRelease, 10020)                      \
  X(MemMap, 10020)                          \
  X(MemUnmap, 10020)                        \
  X(MemSetAccess, 10020)                    \
  X(MemRetainAllocationHandle, 11000)       \
  X(MemExportToShareableHandle, 10020)      \
  X(MemImportFromShareableHandle, 10020)    \
  /* Streams, events, graphs. */            \
  X(StreamCreateWithPriority, 5050)         \
  X(StreamDestroy, 4000)                    \
  X(StreamSynchronize, 2000)                \
  X(StreamQuery, 2000)                      \
  X(StreamGetCtx, 9020)                     \
  X(StreamWaitEvent, 3020)                  \
  X(StreamWaitValue64, 11070)               \
  X(StreamWriteValue64, 11070)              \
  X(LaunchHostFunc, 10000)                  \
  X(EventCreate, 2000)                      \
  X(EventDestroy, 4000)                     \
  X(EventRecord, 2000)                      \
  X(EventQuery, 2000)                       \
  X(EventSynchronize, 2000)                 \
  X(EventElapsedTime, 2000)                 \
  X(StreamBeginCapture, 10010)              \
  X(StreamEndCapture, 10000)                \
  X(StreamGetCaptureInfo, 11030)            \
  X(ThreadExchangeStreamCaptureMode, 10010) \
  X(GraphInstantiateWithFlags, 11040)       \
  X(GraphLaunch, 10000)                     \
  X(GraphExecDestroy, 10000)                \
  X(GraphDestroy, 10000)                    \
  X(UserObjectCreate, 11030)                \
  X(UserObjectRelease, 11030)               \
  X(GraphRetainUserObject, 11030)           \
  /* Kernels. */                            \
  X(LibraryLoadData, 12000)                 \
  X(LibraryUnload, 12000)                   \
  X(LibraryGetKernel, 12000)                \
  X(KernelGetFunction, 12000)               \
  X(FuncGetAttribute, 2020)                 \
  X(FuncSetAttribute, 9000)                 \
  X(LaunchKernel, 4000)                     \
  X(OccupancyMaxActiveBlocksPerMultiprocessor, 6050)

struct Driver {
#define TUTTI_DRIVER_MEMBER(name, version) PFN_cu##name##_v##version name = nullptr;
  TUTTI_DRIVER_FUNCTIONS(TUTTI_DRIVER_MEMBER)
#undef TUTTI_DRIVER_MEMBER
};

/// The oldest supported driver: the first one that runs what the toolkit of this build compiles.
inline constexpr int kOldestDriver = 12000;

/// Returns the table of this process, and initialises the driver at the first call; later calls return the same.
/// Errors: unsupported (no driver, too old a driver, no device).
Result<const Driver*> driver();

/// Returns the table without initialising the driver, or null without a driver. For questions about pointers, all of
/// which are the host's until the driver is initialised. Loads the library, once.
const Driver* loaded_driver();

/// Returns how often the table was replaced (driver_testing.h). Cached data of a driver belongs to one such number.
std::uint64_t driver_generation();

/// "cuMemAlloc failed on GPU 0: CUDA_ERROR_OUT_OF_MEMORY (out of memory)"; `where` ("GPU 0") may be empty. Codes:
/// memory_limit if memory is short, unsupported if the device cannot do it, else system.
Status check(CUresult result, const char* call, const std::string& where = {});

// Devices, by ordinal (as the runtime counts them; CUDA_VISIBLE_DEVICES has been applied).

Result<int> device_count();
/// Errors: invalid_argument if there is no such device.
Result<int> attribute(int device, CUdevice_attribute which);
/// Returns true if kernels of several processes run on it side by side, by NVIDIA's MPS. This is an attribute of the
/// driver; a driver that does not know it gives false.
bool under_mps(int device);
/// Asks whether other devices, such as a NIC, can read and write its memory directly (GPUDirect). Returns true if
/// kernels and copies that begin later see their writes, false if cuFlushGPUDirectRDMAWrites must come between. Errors:
/// unsupported, with what is missing.
Result<bool> orders_direct_writes(int device);
/// Returns 16 bytes that identify the device on every process and host.
Result<CUuuid> uuid_of(int device);
std::string name_of(int device);  // "GPU 0 (NVIDIA H200)"; unknown parts are left out

/// Returns the device of the calling thread's current context, as cudaSetDevice() sets it; -1: the thread has none yet
/// (the runtime would take 0).
Result<int> current_device();

/// Returns a device's primary context, which the CUDA runtime uses too. It is retained once and never released, as the
/// runtime does.
Result<CUcontext> primary_context(int device);

/// Makes a context current for this thread during its lifetime.
class CurrentContext {
 public:
  CurrentContext(CurrentContext&& other) noexcept : driver_(std::exchange(other.driver_, nullptr)) {}
  CurrentContext& operator=(CurrentContext&&) = delete;
  ~CurrentContext();

 private:
  explicit CurrentContext(const Driver* driver) : driver_(driver) {}
  friend Result<CurrentContext> enter(int device);
  const Driver* driver_;
};
Result<CurrentContext> enter(int device);

/// During its lifetime this thread may allocate, map and query while it (or another thread) captures a stream. Such
/// calls are not part of the graph.
class UncapturedCalls {
 public:
  explicit UncapturedCalls(const Driver& driver);
  ~UncapturedCalls();
  UncapturedCalls(const UncapturedCalls&) = delete;
  UncapturedCalls& operator=(const UncapturedCalls&) = delete;

 private:
  const Driver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

/// Enables access from kernels of `device` to the memory of `peer`. Returns false if the driver refuses it, true if it
/// is enabled (also before) or device == peer.
Result<bool> enable_peer_access(int device, int peer);

}  // namespace tutti::device
