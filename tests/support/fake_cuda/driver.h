// A CUDA driver over host memory, for tests on machines without a GPU: the functions of device::Driver, with their
// rules where these matter to the library.
//
//   FakeDriver cuda({.devices = 2});                        // is the process's driver from now on, until its end
//   cuda.kernel("add", add);                                // void add(const FakeBlock& block, float* data, int count)
//   ... code that loads a library, gets the kernel "add", launches it on a stream ...
//   cuda.fail("cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY);      // the next one
//
// What it is faithful in:
// - Device memory is shared memory without a name, garbage when it is fresh, and its pointers are the host's: so a
//   kernel is a host function. Other processes that have a fake driver of their own open it by IPC handles or
//   descriptors, at other addresses; handles of a process that has ended, or of memory that was freed, are refused.
//   Device i is the same device in all processes (its uuid says so).
// - A stream is a thread with a queue. Legacy and per-thread default streams, blocking and non-blocking streams,
//   events, wait and write of 64-bit values, host functions.
// - A launch runs the function of the kernel's name once for each block, each block on a thread of its own. A device
//   holds multiprocessors x blocks_per_multiprocessor blocks at a time, and the rest waits: blocks that wait for
//   others which have found no room hang, as on a GPU.
// - Capture: launches, copies, fills and values become nodes; other streams join by events; what capture forbids is
//   refused and ends it. A graph's branches run at the same time.
// - Contexts: calls that need a current one fail without.
// - Memory that was handed out as a dmabuf is closed to the host from then on: who reads or writes it at its address
//   faults. The driver's own copies reach it, and who maps the descriptor.
// It does not model: time slicing between processes, faults by missing peer access, the order in which a GPU's memory
// system shows stores (host threads see what the host's does).
//
// Threads: any. One FakeDriver at a time; nothing of the library that holds device memory outlives it.
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "device/driver.h"

namespace tutti::testing {

struct FakeMachine {
  int devices = 1;
  int multiprocessors = 8;
  int blocks_per_multiprocessor = 4;          // of any kernel
  std::size_t memory = std::size_t{1} << 30;  // bytes, each device
  bool peer_access = true;                    // between any two devices
  bool ipc = true;                            // legacy memory handles; else they are not supported
  bool wait_values = true;                    // attribute: streams can wait for values
  bool mps = false;                           // attribute: the process's contexts are MPS's
  bool dmabuf = false;                        // attribute: exports its memory to other devices
  bool ordered = true;                        // attribute: what those write needs no flush
  int driver_version = 13000;
};

/// One block of a launch, as its kernel sees it (grids and blocks have one dimension).
struct FakeBlock {
  unsigned index = 0;
  unsigned count = 1;
  unsigned threads = 1;
  std::byte* shared = nullptr;  // the launch's dynamic shared memory; garbage
  std::size_t shared_bytes = 0;
  int device = 0;
};

class FakeDriver {
 public:
  explicit FakeDriver(const FakeMachine& machine = {});
  /// Waits for all streams.
  ~FakeDriver();
  FakeDriver(const FakeDriver&) = delete;
  FakeDriver& operator=(const FakeDriver&) = delete;

  const device::Driver& table() const;

  /// Sets the function that launches of kernel `name` run. Every library that is loaded has all kernels.
  template <class... A>
  void kernel(const std::string& name, void (*function)(const FakeBlock&, A...)) {
    add_kernel(name, {sizeof(A)...}, [function](const FakeBlock& block, void* const* parameters) {
      call(function, block, parameters, std::index_sequence_for<A...>{});
    });
  }

  /// The `after`-th next call of "cuMemAlloc" (1: the next), and `times` - 1 more after it, give this error and do
  /// nothing.
  void fail(const std::string& call, CUresult error, int after = 1, int times = 1);
  /// Returns how often `call` was made.
  int calls(const std::string& call) const;
  /// Acts as if a kernel had faulted: drops all work of the device; its calls give this error from now on.
  void fault(int device, CUresult error);

  /// Managed memory, since the library itself never makes any. Freed by cuMemFree.
  CUdeviceptr allocate_managed(std::size_t bytes);
  std::size_t allocated(int device) const;  // bytes
  int mapped() const;                       // allocations of other processes that are open here
  int resident_most(int device) const;      // the most blocks that were resident at a time
  bool peer_enabled(int device, int peer) const;

 private:
  using Body = std::function<void(const FakeBlock&, void* const*)>;
  template <class... A, std::size_t... I>
  static void call(void (*function)(const FakeBlock&, A...), const FakeBlock& block, void* const* parameters,
                   std::index_sequence<I...>) {
    function(block, *static_cast<A*>(parameters[I])...);
  }
  void add_kernel(const std::string& name, std::vector<std::size_t> sizes, Body body);
};

}  // namespace tutti::testing
