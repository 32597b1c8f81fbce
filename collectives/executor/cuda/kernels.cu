// The kernels: one for each type that is reduced, and one that only moves. Compiled into a fat binary that
// cmake/tutti_cuda.cmake embeds into the library; kernels.h names what is in it.
#define TUTTI_BOTH static __device__ __forceinline__
#define TUTTI_MEMBER __device__ __forceinline__
#define TUTTI_SLOW __device__ __noinline__
#define TUTTI_SLOW_FREE static __device__ __noinline__

#include "collectives/executor/cuda/device_block-inl.h"
#include "collectives/executor/cuda/p2p-inl.h"
#include "collectives/executor/cuda/walker-inl.h"

namespace tutti::executor::cuda {
namespace {

template <DataType kType, bool kReduces>
__device__ __forceinline__ void walk(const LaunchArguments& arguments) {
  __shared__ alignas(16) unsigned char storage[sizeof(Shared)];
  Walker<DeviceBlock<Shared>, kType, kReduces> walker(arguments, reinterpret_cast<Shared*>(storage));
  walker.run();
}

}  // namespace

extern "C" __global__ void __launch_bounds__(512, 1) run_p2p(const __grid_constant__ P2pArguments a) {
  __shared__ alignas(16) unsigned char storage[sizeof(P2pShared)];
  P2pRunner<DeviceBlock<P2pShared>> carrier(a, reinterpret_cast<P2pShared*>(storage));
  carrier.run();
}

// A block fills half of a multiprocessor's threads and may use all of its registers.
#define TUTTI_WALK(name, type, reduces)                                                                         \
  extern "C" __global__ void __launch_bounds__(512, 1) walk_##name(const __grid_constant__ LaunchArguments a) { \
    walk<DataType::type, reduces>(a);                                                                           \
  }

TUTTI_WALK(move, u32, false)
#if !defined(TUTTI_WALK_ONLY_MOVE)
TUTTI_WALK(i8, i8, true)
TUTTI_WALK(u8, u8, true)
TUTTI_WALK(i32, i32, true)
TUTTI_WALK(u32, u32, true)
TUTTI_WALK(i64, i64, true)
TUTTI_WALK(u64, u64, true)
TUTTI_WALK(f16, f16, true)
TUTTI_WALK(bf16, bf16, true)
TUTTI_WALK(f32, f32, true)
TUTTI_WALK(f64, f64, true)
TUTTI_WALK(f8e4m3, f8e4m3, true)
TUTTI_WALK(f8e5m2, f8e5m2, true)
#endif

}  // namespace tutti::executor::cuda
