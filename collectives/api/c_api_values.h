// That the numbers of the C ABI (tutti.h) are those of the C++ API; c_api.cc casts from one to the other.
#pragma once

#include "tutti/tutti.h"
#include "tutti/tutti.hpp"

namespace tutti {

static_assert(TUTTI_OK == static_cast<int>(Code::ok));
static_assert(TUTTI_INVALID_ARGUMENT == static_cast<int>(Code::invalid_argument));
static_assert(TUTTI_UNSUPPORTED == static_cast<int>(Code::unsupported));
static_assert(TUTTI_MISMATCH == static_cast<int>(Code::mismatch));
static_assert(TUTTI_TIMEOUT == static_cast<int>(Code::timeout));
static_assert(TUTTI_PEER_DIED == static_cast<int>(Code::peer_died));
static_assert(TUTTI_ABORTED == static_cast<int>(Code::aborted));
static_assert(TUTTI_SYSTEM == static_cast<int>(Code::system));
static_assert(TUTTI_MEMORY_LIMIT == static_cast<int>(Code::memory_limit));
static_assert(TUTTI_I8 == static_cast<int>(DataType::i8) && TUTTI_U8 == static_cast<int>(DataType::u8));
static_assert(TUTTI_I32 == static_cast<int>(DataType::i32) && TUTTI_U32 == static_cast<int>(DataType::u32));
static_assert(TUTTI_I64 == static_cast<int>(DataType::i64) && TUTTI_U64 == static_cast<int>(DataType::u64));
static_assert(TUTTI_F16 == static_cast<int>(DataType::f16) && TUTTI_BF16 == static_cast<int>(DataType::bf16));
static_assert(TUTTI_F32 == static_cast<int>(DataType::f32) && TUTTI_F64 == static_cast<int>(DataType::f64));
static_assert(TUTTI_F8E4M3 == static_cast<int>(DataType::f8e4m3) && TUTTI_F8E5M2 == static_cast<int>(DataType::f8e5m2));
static_assert(TUTTI_SUM == static_cast<int>(ReduceOp::sum) && TUTTI_PROD == static_cast<int>(ReduceOp::prod));
static_assert(TUTTI_MIN == static_cast<int>(ReduceOp::min) && TUTTI_MAX == static_cast<int>(ReduceOp::max));
static_assert(TUTTI_AVG == static_cast<int>(ReduceOp::avg));
static_assert(TUTTI_PREMUL_SUM == static_cast<int>(ReduceOp::premul_sum));
static_assert(TUTTI_BAND == static_cast<int>(ReduceOp::band) && TUTTI_BOR == static_cast<int>(ReduceOp::bor));
static_assert(TUTTI_BXOR == static_cast<int>(ReduceOp::bxor));
static_assert(TUTTI_ANY_SOURCE == tutti::kAnySource);
static_assert(sizeof(tutti_unique_id_t) == sizeof(tutti::UniqueId));

}  // namespace tutti
