#include "nccl/device.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdint>
#include <cstring>

namespace tutti::nccl {
namespace {

/// The driver's functions that are needed here, as cuda.h declares them; all null where the program uses no CUDA.
struct Cuda {
  int (*get_device)(int* device) = nullptr;  // 0 is success
  int (*attribute)(void* to, int which, std::uintptr_t pointer) = nullptr;
  int (*copy_to_host)(void* to, std::uintptr_t from, std::size_t bytes, cudaStream_t stream) = nullptr;
  int (*synchronize)(cudaStream_t stream) = nullptr;
  bool complete() const {
    return get_device != nullptr && attribute != nullptr && copy_to_host != nullptr && synchronize != nullptr;
  }
};

const auto kPerThreadStream = reinterpret_cast<cudaStream_t>(2);  // cudaStreamPerThread

constexpr int kMemoryType = 2;    // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
constexpr int kDeviceMemory = 2;  // CU_MEMORYTYPE_DEVICE

/// Asked anew each time: a program may load the driver late. What it has loaded stays.
Cuda cuda() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return {};
  const auto find = [&]<class Function>(Function*& to, const char* name) {
    to = reinterpret_cast<Function*>(dlsym(library, name));
  };
  Cuda found;
  find(found.get_device, "cuCtxGetDevice");
  find(found.attribute, "cuPointerGetAttribute");
  find(found.copy_to_host, "cuMemcpyDtoHAsync_v2");
  find(found.synchronize, "cuStreamSynchronize");
  dlclose(library);  // the program's own hold on it remains
  return found.complete() ? found : Cuda{};
}

bool is_on_device(const Cuda& driver, const void* pointer) {
  unsigned type = 0;
  return driver.complete() && driver.attribute(&type, kMemoryType, reinterpret_cast<std::uintptr_t>(pointer)) == 0 &&
         type == kDeviceMemory;
}

}  // namespace

CallOptions options_of(cudaStream_t stream) {
  CallOptions options;
  options.stream = stream;
  return options;
}

void send(Communicator& communicator, const void* buffer, std::size_t count, DataType type, int peer,
          cudaStream_t stream) {
  communicator.send(buffer, count, type, peer, 0, stream);
}

void recv(Communicator& communicator, void* buffer, std::size_t count, DataType type, int peer, cudaStream_t stream) {
  communicator.recv(buffer, count, type, peer, 0, nullptr, stream);
}

bool is_of_this_thread(cudaStream_t stream, const void* send, const void* recv) {
  if (stream != kPerThreadStream) return false;
  const Cuda driver = cuda();
  return is_on_device(driver, send) || is_on_device(driver, recv);
}

int current_device() {
  const Cuda driver = cuda();
  int device = 0;
  return driver.complete() && driver.get_device(&device) == 0 ? device : 0;
}

void open_memory(Communicator& communicator, int device) noexcept {
  try {
    if (supports(Memory::device)) communicator.open_device(device);
  } catch (const Error&) {
    // The communicator is as it was, or has failed and says why at its first call.
  }
}

void* allocate_buffer(std::size_t bytes) {
  return allocate(bytes, supports(Memory::device) ? Memory::device : Memory::host);
}

void deallocate_buffer(void* pointer) { deallocate(pointer); }

void read_scalar(void* to, const void* scalar, std::size_t bytes, cudaStream_t stream) {
  const Cuda driver = cuda();
  if (!is_on_device(driver, scalar)) {
    std::memcpy(to, scalar, bytes);
    return;
  }
  int failed = driver.copy_to_host(to, reinterpret_cast<std::uintptr_t>(scalar), bytes, stream);
  if (failed == 0) failed = driver.synchronize(stream);
  if (failed == 0) return;
  throw Error(Code::system,
              fmt::format("the operator's scalar in device memory could not be read (CUDA error {}); expected a stream "
                          "that can be waited for, or ncclScalarHostImmediate",
                          failed));
}

}  // namespace tutti::nccl
