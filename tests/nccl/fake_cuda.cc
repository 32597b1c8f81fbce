// A libcuda.so.1 with what nccl/device.cc asks of it: what lies in `fake_device_memory` is the device's.
#include <cstddef>
#include <cstdint>
#include <cstring>

extern "C" {

char fake_device_memory[256];
int fake_copies = 0;
int fake_failure = 0;  // what the next copies end with

/// Other memory of the device; null: none.
bool (*fake_is_on_device)(std::uintptr_t pointer) = nullptr;

thread_local int fake_device = 0;  // the thread's current one

void fake_set_device(int device) { fake_device = device; }

int cuCtxGetDevice(int* device) {
  *device = fake_device;
  return 0;
}

int cuPointerGetAttribute(void* to, int which, std::uintptr_t pointer) {
  const auto begin = reinterpret_cast<std::uintptr_t>(fake_device_memory);
  const bool inside = pointer >= begin && pointer < begin + sizeof fake_device_memory;
  if (which != 2 || !(inside || (fake_is_on_device != nullptr && fake_is_on_device(pointer)))) return 1;  // not CUDA's
  const unsigned device = 2;
  std::memcpy(to, &device, sizeof device);
  return 0;
}

int cuMemcpyDtoHAsync_v2(void* to, std::uintptr_t from, std::size_t bytes, void*) {
  ++fake_copies;
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return fake_failure;
}

int cuStreamSynchronize(void*) { return 0; }

}  // extern "C"
