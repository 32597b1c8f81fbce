// The kernels by number: one for each element type that is reduced, one that only moves, one for messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tutti/types.hpp"

namespace tutti::executor::cuda {

inline constexpr int kMoveKernel = kDataTypes;
inline constexpr int kP2pKernel = kDataTypes + 1;
inline constexpr int kKernels = kDataTypes + 2;
inline constexpr const char* kKernelNames[kKernels] = {
    "walk_i8",   "walk_u8",  "walk_i32", "walk_u32",    "walk_i64",    "walk_u64",  "walk_f16",
    "walk_bf16", "walk_f32", "walk_f64", "walk_f8e4m3", "walk_f8e5m2", "walk_move", "run_p2p"};
inline constexpr unsigned kThreadsOfBlock = 512;

/// Returns the kernel that runs a program. Bits of all types are combined as those of u32.
constexpr int kernel_of(DataType type, ReduceOp op, bool reduces) {
  if (!reduces) return kMoveKernel;
  return static_cast<int>(is_bitwise(op) ? DataType::u32 : type);
}

/// The fat binary of all kernels; empty where the build had no nvcc.
std::span<const std::byte> kernel_image();

}  // namespace tutti::executor::cuda
