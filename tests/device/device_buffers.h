// Device memory, a stream and graphs for tests, straight by the driver.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/driver.h"
#include "tests/support/machine_driver.h"

namespace tutti::testing {

inline void must_cuda(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) throw std::runtime_error(std::string(what) + ": " + std::to_string(result));
}

/// Memory of one GPU, freed at the end, and a stream of its own. A machine's own driver may make a thread that
/// allocates wait for kernels that run, which wait for their peers: there what is given out is cut from what was
/// allocated before.
class DeviceBuffers {
 public:
  explicit DeviceBuffers(int device) : cuda_(*device::driver().value()), device_(device) {
    const auto context = device::enter(device_);
    must_cuda(cuda_.StreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0), "cuStreamCreate");
    if (on_the_machine()) begin_block(kBlock);
  }
  ~DeviceBuffers() {
    let_go();
    const auto context = device::enter(device_);
    cuda_.StreamSynchronize(stream_);
    for (const CUdeviceptr memory : memory_) cuda_.MemFree(memory);
    if (gate_ != nullptr) cuda_.MemFreeHost(gate_);
    cuda_.StreamDestroy(stream_);
  }
  DeviceBuffers(const DeviceBuffers&) = delete;
  DeviceBuffers& operator=(const DeviceBuffers&) = delete;

  CUstream stream() const { return stream_; }
  auto enter() const { return device::enter(device_); }
  const device::Driver& driver() const { return cuda_; }

  std::byte* allocate(std::size_t bytes) {
    if (!on_the_machine()) {
      begin_block(bytes);
    } else if (at_ + bytes > end_) {
      begin_block(std::max(bytes, kBlock));
    }
    auto* made = reinterpret_cast<std::byte*>(at_);
    at_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return made;
  }
  void write(std::byte* to, std::span<const std::byte> from) {
    const auto context = device::enter(device_);
    must_cuda(cuda_.MemcpyAsync(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from.data()),
                                from.size(), stream_),
              "cuMemcpyAsync");
    synchronize();
  }
  std::vector<std::byte> read(const std::byte* from, std::size_t bytes) {
    const auto context = device::enter(device_);
    std::vector<std::byte> to(bytes);
    must_cuda(cuda_.MemcpyAsync(reinterpret_cast<CUdeviceptr>(to.data()), reinterpret_cast<CUdeviceptr>(from), bytes,
                                stream_),
              "cuMemcpyAsync");
    synchronize();
    return to;
  }
  /// Checks that `count` expected values lie there; throws the first that differs.
  template <class Value>
  void must_hold(const std::byte* at, std::size_t count, const std::function<Value(std::size_t)>& expected) {
    const std::vector<std::byte> bytes = read(at, sizeof(Value) * count);
    for (std::size_t i = 0; i < count; ++i) {
      Value got{};
      std::memcpy(&got, bytes.data() + sizeof(Value) * i, sizeof(Value));
      if (got != expected(i)) {
        throw std::runtime_error("value " + std::to_string(i) + " is " + std::to_string(got) + "; expected " +
                                 std::to_string(expected(i)));
      }
    }
  }
  /// Makes later work of the stream wait for let_go().
  void hold() {
    const auto context = device::enter(device_);
    if (gate_ == nullptr) {  // in memory that the host writes, too
      void* made = nullptr;
      must_cuda(cuda_.MemHostAlloc(&made, sizeof(*gate_), 0), "cuMemHostAlloc");
      gate_ = new (made) std::uint64_t{0};
    }
    must_cuda(cuda_.StreamWaitValue64(stream_, reinterpret_cast<CUdeviceptr>(gate_), ++held_, CU_STREAM_WAIT_VALUE_GEQ),
              "cuStreamWaitValue64");
  }
  void let_go() {
    if (gate_ != nullptr) std::atomic_ref<std::uint64_t>(*gate_).store(held_);
  }
  void synchronize() { must_cuda(cuda_.StreamSynchronize(stream_), "cuStreamSynchronize"); }

 private:
  static constexpr std::size_t kBlock = std::size_t{64} << 20;
  static constexpr std::size_t kAlignment = 256;  // as cuMemAlloc gives it

  void begin_block(std::size_t bytes) {
    const auto context = device::enter(device_);
    must_cuda(cuda_.MemAlloc(&at_, bytes), "cuMemAlloc");
    memory_.push_back(at_);
    end_ = at_ + bytes;
  }

  const device::Driver& cuda_;
  const int device_;
  CUstream stream_ = nullptr;
  std::uint64_t* gate_ = nullptr;  // pinned
  std::uint64_t held_ = 0;         // times; what lets the stream go on
  std::vector<CUdeviceptr> memory_;
  CUdeviceptr at_ = 0;  // of the last one: what has not been given out
  CUdeviceptr end_ = 0;
};

/// Captures as a graph what `body` puts into the stream of `memory`.
class DeviceGraph {
 public:
  DeviceGraph(DeviceBuffers& memory, const std::function<void()>& body) : memory_(memory) {
    const device::Driver& cuda = memory.driver();
    must_cuda(cuda.StreamBeginCapture(memory.stream(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "cuStreamBeginCapture");
    body();
    must_cuda(cuda.StreamEndCapture(memory.stream(), &graph_), "cuStreamEndCapture");
    const auto context = memory.enter();
    must_cuda(cuda.GraphInstantiateWithFlags(&exec_, graph_, 0), "cuGraphInstantiate");
  }
  ~DeviceGraph() {
    memory_.driver().GraphExecDestroy(exec_);
    memory_.driver().GraphDestroy(graph_);
  }
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;

  void launch() { must_cuda(memory_.driver().GraphLaunch(exec_, memory_.stream()), "cuGraphLaunch"); }

 private:
  DeviceBuffers& memory_;
  CUgraph graph_ = nullptr;
  CUgraphExec exec_ = nullptr;
};

}  // namespace tutti::testing
