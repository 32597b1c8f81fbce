// Libraries, kernels and their launches: each block on a thread of its own, as many at a time as the device holds.
#if TUTTI_HAS_CUDA
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "tests/support/fake_cuda/state.h"

namespace tutti::testing::fake {

namespace {

constexpr int kMostShared = 227 << 10;

void work() {
  Lock lock(state->mutex);
  for (;;) {
    ++state->idle;
    state->changed.wait(lock, [] { return state->ends || !state->tasks.empty(); });
    --state->idle;
    if (state->tasks.empty()) return;
    const std::function<void()> task = std::move(state->tasks.front());
    state->tasks.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
}

}  // namespace

void start_task(std::function<void()> task) {
  state->tasks.push_back(std::move(task));
  // Tasks may wait for each other: there is a thread for each.
  if (state->tasks.size() > static_cast<std::size_t>(state->idle)) state->workers.emplace_back(work);
  state->changed.notify_all();
}

void run_kernel(const std::function<void(const FakeBlock&, void* const*)>& body, const FakeBlock& shape,
                const std::vector<Parameter>& parameters) {
  Device& device = state->devices[static_cast<std::size_t>(shape.device)];
  const int room = state->machine.multiprocessors * state->machine.blocks_per_multiprocessor;
  unsigned left = shape.count;
  Lock lock(state->mutex);
  // Launches find room in the order in which they start, and one that waits for room lets none pass.
  const std::uint64_t ticket = device.next_ticket++;
  state->changed.wait(lock, [&] { return device.dispatching == ticket; });
  for (unsigned b = 0; b < shape.count; ++b) {
    state->changed.wait(lock, [&] { return device.resident < room; });
    device.resident_most = std::max(device.resident_most, ++device.resident);
    start_task([&, b] {
      FakeBlock block = shape;
      block.index = b;
      std::vector<std::byte> shared(shape.shared_bytes, std::byte{0xA5});
      block.shared = shared.data();
      std::vector<Parameter> own = parameters;
      std::vector<void*> pointers;
      for (Parameter& parameter : own) pointers.push_back(parameter.data());
      body(block, pointers.data());
      const Lock inside(state->mutex);
      --device.resident;
      --left;
      state->changed.notify_all();
    });
  }
  ++device.dispatching;
  state->changed.notify_all();
  state->changed.wait(lock, [&] { return left == 0; });
}

namespace {

CUresult load_library(CUlibrary* library, const void* code, CUjit_option* /*jit*/, void** /*jit_values*/,
                      unsigned /*jit_count*/, CUlibraryOption* /*options*/, void** /*values*/, unsigned /*count*/) {
  TUTTI_FAKE_ENTER("cuLibraryLoadData");
  if (code == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *library = reinterpret_cast<CUlibrary>(state);
  return CUDA_SUCCESS;
}

CUresult unload_library(CUlibrary library) {
  TUTTI_FAKE_ENTER("cuLibraryUnload");
  return library == reinterpret_cast<CUlibrary>(state) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult get_kernel(CUkernel* kernel, CUlibrary library, const char* name) {
  TUTTI_FAKE_ENTER("cuLibraryGetKernel");
  const Lock lock(state->mutex);
  if (library != reinterpret_cast<CUlibrary>(state)) return CUDA_ERROR_INVALID_HANDLE;
  const auto found = state->kernels.find(name);
  if (found == state->kernels.end()) return CUDA_ERROR_NOT_FOUND;
  *kernel = reinterpret_cast<CUkernel>(&found->second);
  return CUDA_SUCCESS;
}

CUresult get_function(CUfunction* function, CUkernel kernel) {
  TUTTI_FAKE_ENTER("cuKernelGetFunction", true);
  *function = reinterpret_cast<CUfunction>(kernel);
  return CUDA_SUCCESS;
}

Kernel& kernel_of(CUfunction function) { return *reinterpret_cast<Kernel*>(function); }

CUresult get_attribute(int* value, CUfunction_attribute which, CUfunction function) {
  TUTTI_FAKE_ENTER("cuFuncGetAttribute");
  const Lock lock(state->mutex);
  switch (which) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 64; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = kernel_of(function).most_shared; break;
    default: *value = 0; break;
  }
  return CUDA_SUCCESS;
}

CUresult set_attribute(CUfunction function, CUfunction_attribute which, int value) {
  TUTTI_FAKE_ENTER("cuFuncSetAttribute");
  const Lock lock(state->mutex);
  if (which != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_SUCCESS;
  if (value > kMostShared) return CUDA_ERROR_INVALID_VALUE;
  kernel_of(function).most_shared = value;
  return CUDA_SUCCESS;
}

CUresult launch(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream on, void** parameters,
                void** /*extra*/) {
  TUTTI_FAKE_ENTER("cuLaunchKernel");
  const Lock lock(state->mutex);
  const Kernel& kernel = kernel_of(function);
  const bool possible = grid_x > 0 && grid_y == 1 && grid_z == 1 && block_x > 0 && block_x <= 1024 && block_y == 1 &&
                        block_z == 1 && shared_bytes <= static_cast<unsigned>(kernel.most_shared);
  if (!possible) return CUDA_ERROR_INVALID_VALUE;
  const StreamRef stream = stream_of(on);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (current() == nullptr || current()->device != stream->device) return CUDA_ERROR_INVALID_HANDLE;
  // Parameters are taken now, whenever the kernel runs.
  std::vector<Parameter> copies;
  for (std::size_t i = 0; i < kernel.sizes.size(); ++i) {
    copies.emplace_back(kernel.sizes[i] / sizeof(Line) + 1);
    std::memcpy(copies.back().data(), parameters[i], kernel.sizes[i]);
  }
  FakeBlock shape{.count = grid_x, .threads = block_x, .shared_bytes = shared_bytes, .device = stream->device};
  return enqueue(stream, [body = kernel.body, shape, copies = std::move(copies)] { run_kernel(body, shape, copies); });
}

CUresult occupancy(int* blocks, CUfunction /*function*/, int threads, std::size_t shared_bytes) {
  TUTTI_FAKE_ENTER("cuOccupancyMaxActiveBlocksPerMultiprocessor");
  if (threads <= 0 || threads > 1024 || shared_bytes > kMostShared) return CUDA_ERROR_INVALID_VALUE;
  *blocks = state->machine.blocks_per_multiprocessor;
  return CUDA_SUCCESS;
}

}  // namespace

void fill_kernels(device::Driver& table) {
  table.LibraryLoadData = load_library;
  table.LibraryUnload = unload_library;
  table.LibraryGetKernel = get_kernel;
  table.KernelGetFunction = get_function;
  table.FuncGetAttribute = get_attribute;
  table.FuncSetAttribute = set_attribute;
  table.LaunchKernel = launch;
  table.OccupancyMaxActiveBlocksPerMultiprocessor = occupancy;
}

}  // namespace tutti::testing::fake
#endif
