// The fake driver as a libcuda.so.1, for programs that look for one: $FAKE_GPUS GPUs (1), on which the kernels of Tutti
// and of its benchmarks run.
#include <cstdlib>
#include <cstring>

#include "tests/perf/add_on_host.h"
#include "tests/support/fake_cuda/driver.h"
#include "tests/support/fake_cuda/walkers.h"

namespace tutti::testing {
namespace {

/// Ends with the process, whose last threads may still ask it.
const device::Driver& table() {
  static const FakeDriver* const driver = [] {
    const char* gpus = std::getenv("FAKE_GPUS");
    auto* made = new FakeDriver({.devices = gpus != nullptr ? std::atoi(gpus) : 1});
    add_walkers(*made);
    perf::add_adder(*made);
    return made;
  }();
  return driver->table();
}

}  // namespace
}  // namespace tutti::testing

extern "C" __attribute__((visibility("default"))) CUresult cuGetProcAddress_v2(
    const char* name, void** function, int /*version*/, cuuint64_t /*flags*/,
    CUdriverProcAddressQueryResult* /*found*/) {
  *function = nullptr;
#define TUTTI_FAKE_FIND(each, version) \
  if (std::strcmp(name, "cu" #each) == 0) *function = reinterpret_cast<void*>(tutti::testing::table().each);
  TUTTI_DRIVER_FUNCTIONS(TUTTI_FAKE_FIND)
#undef TUTTI_FAKE_FIND
  return *function != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

// By their own names, for nccl/device.cc.
extern "C" {
#define SHOWN __attribute__((visibility("default")))
SHOWN CUresult cuCtxGetDevice(CUdevice* device) { return tutti::testing::table().CtxGetDevice(device); }
SHOWN CUresult cuStreamSynchronize(CUstream stream) { return tutti::testing::table().StreamSynchronize(stream); }
SHOWN CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return tutti::testing::table().MemcpyAsync(reinterpret_cast<CUdeviceptr>(to), from, bytes, stream);
}
SHOWN CUresult cuPointerGetAttribute(void* to, CUpointer_attribute which, CUdeviceptr pointer) {
  return tutti::testing::table().PointerGetAttributes(1, &which, &to, pointer);
}
}
