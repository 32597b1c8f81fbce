// A thread block of the device, as walker-inl.h wants it. PTX by hand where C++ has no word for an order and scope.
#pragma once

#include <cstdint>

namespace tutti::executor::cuda {

/// `Shared`: what its threads share.
template <class Shared>
class DeviceBlock {
 public:
  /// Between two looks at whether to go on waiting: one of these costs a trip over PCIe.
  static constexpr std::uint32_t kTurnsBetweenLooks = 256;

  __device__ explicit DeviceBlock(Shared* shared) : shared_(shared) {}

  __device__ std::uint32_t thread() const { return threadIdx.x; }
  __device__ std::uint32_t threads() const { return blockDim.x; }
  __device__ std::uint32_t index() const { return blockIdx.x; }
  __device__ std::uint32_t blocks() const { return gridDim.x; }
  __device__ Shared& shared() const { return *shared_; }
  __device__ void sync() const { __syncthreads(); }
  __device__ bool any(bool value) const { return __syncthreads_or(value) != 0; }

  // Words that ranks share: system scope.
  __device__ std::uint64_t load(const std::uint64_t* from) const {
    std::uint64_t value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
  }
  __device__ std::uint64_t load_acquire(const std::uint64_t* from) const {
    std::uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
  }
  __device__ void store(std::uint64_t* to, std::uint64_t value) const {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
  }
  __device__ void store_release(std::uint64_t* to, std::uint64_t value) const {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
  }
  /// A vector is two words of 8 bytes to the memory model: each is whole, their order is open.
  __device__ void load_line(std::uint64_t from, std::uint64_t& low, std::uint64_t& high) const {
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(low), "=l"(high) : "l"(from) : "memory");
  }
  __device__ void store_line(std::uint64_t to, std::uint64_t low, std::uint64_t high) const {
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(low), "l"(high) : "memory");
  }
  __device__ void fence_alias() const { asm volatile("fence.proxy.alias;" ::: "memory"); }

  // Words of this rank's own kernel: device scope.
  __device__ std::uint64_t add(std::uint64_t* to, std::uint64_t value) const {
    std::uint64_t before;
    asm volatile("atom.add.acq_rel.gpu.global.u64 %0, [%1], %2;" : "=l"(before) : "l"(to), "l"(value) : "memory");
    return before;
  }
  /// Changes the word from 0 to 1. Returns true for the thread that did it.
  __device__ bool claim(std::uint64_t* word) const {
    std::uint64_t before;
    asm volatile("atom.cas.acq_rel.gpu.global.b64 %0, [%1], %2, %3;"
                 : "=l"(before)
                 : "l"(word), "l"(std::uint64_t{0}), "l"(std::uint64_t{1})
                 : "memory");
    return before == 0;
  }

  __device__ std::uint64_t now_ns() const {
    std::uint64_t value;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(value));
    return value;
  }
  __device__ void relax() const { __nanosleep(64); }

 private:
  Shared* shared_;
};

}  // namespace tutti::executor::cuda
