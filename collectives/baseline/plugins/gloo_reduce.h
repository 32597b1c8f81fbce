// Gloo's own element-wise functions (gloo/math.h), by type and operation.
#pragma once

#include <gloo/math.h>

#include <cstddef>
#include <cstdint>

#include "tutti/types.hpp"

namespace tutti {

using GlooReduce = void (*)(void* result, const void* a, const void* b, std::size_t count);

template <class T>
GlooReduce gloo_reduce_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::prod: return &gloo::product<T>;
    case ReduceOp::min: return &gloo::min<T>;
    case ReduceOp::max: return &gloo::max<T>;
    case ReduceOp::sum:
    case ReduceOp::avg:  // a sum, and then a pass that divides
    case ReduceOp::premul_sum:
    case ReduceOp::band:
    case ReduceOp::bor:
    case ReduceOp::bxor: break;
  }
  return &gloo::sum<T>;
}

/// Null where Gloo has no such type or operation.
inline GlooReduce gloo_reduce(DataType type, ReduceOp op) {
  if (is_bitwise(op)) return nullptr;
  switch (type) {
    case DataType::i8: return gloo_reduce_of<std::int8_t>(op);
    case DataType::u8: return gloo_reduce_of<std::uint8_t>(op);
    case DataType::i32: return gloo_reduce_of<std::int32_t>(op);
    case DataType::u32: return gloo_reduce_of<std::uint32_t>(op);
    case DataType::i64: return gloo_reduce_of<std::int64_t>(op);
    case DataType::u64: return gloo_reduce_of<std::uint64_t>(op);
    case DataType::f16: return gloo_reduce_of<gloo::float16>(op);
    case DataType::f32: return gloo_reduce_of<float>(op);
    case DataType::f64: return gloo_reduce_of<double>(op);
    case DataType::bf16:
    case DataType::f8e4m3:
    case DataType::f8e5m2: break;
  }
  return nullptr;
}

}  // namespace tutti
