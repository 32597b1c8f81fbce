// dst... = src0 op src1 op ...: the arithmetic of collectives in host memory, for every type and operation.
//
// The result of a call is a function of its arguments alone: the same bits from every instruction set, any alignment,
// any number of destinations, streaming or not. An algorithm that combines its sources in several calls rounds once per
// call; which calls it makes is the algorithm's business.
//
// Semantics
//   order      every element is ((src[0] op src[1]) op src[2]) ..., never re-associated, never contracted into an FMA.
//   width      f32 and f64 accumulate in their own type. f16, bf16, f8e4m3 and f8e5m2 widen to f32 (exact), accumulate
//              over all sources of the call in f32 and are rounded once, to nearest, ties to even.
//   overflow   f16, bf16 and f8e5m2 overflow to infinity as IEEE formats do, so that an overflowed gradient can be
//   seen.
//              f8e4m3 (OCP "e4m3fn") has no infinity: what rounds above 448, and infinity, becomes 448 with its sign
//              (as CUDA's __NV_SATFINITE).
//   integers   sum and prod wrap modulo 2^bits, signed types too.
//   avg        the sum, divided once by divide_by in the accumulator's type, before rounding to the type. A division,
//   not
//              a product with 1/n: it is correctly rounded, so the average of equal numbers whose sum is exact is that
//              number for every n. The (wrapped) sum of integers is divided with truncation toward zero.
//   premul_sum each source times its factor, the product rounded to the type, then summed: the same bits from any
//              algorithm that multiplies each contribution once. For floats up to 32 bits factor and product are f32;
//              for integers the factor is truncated toward zero and clamped to the type (NaN: 0), the product wraps.
//   bits       band, bor and bxor of integers, bit by bit.
//   min, max   NaN if any source is NaN; -0 is less than +0 (IEEE 754-2019 minimum and maximum).
//   NaN        whatever its origin, a NaN result has one bit pattern: positive, quiet, payload zero (f8e4m3: 0x7f).
//              What the hardware leaves there depends on the order of operands that a compiler happened to choose.
// The thread's floating-point environment applies to the f32 and f64 arithmetic (rounding mode, flush to zero); callers
// that change it get their own results, and must change it on all ranks alike.
#pragma once

#include <cstddef>
#include <span>

#include "tutti/types.hpp"

namespace tutti::reduce {

/// Fewer bytes than these stay in any core's own caches: `streaming` stores only lose.
inline constexpr std::size_t kLeastStreaming = std::size_t{1} << 20;

struct Spec {
  DataType type = DataType::f32;
  ReduceOp op = ReduceOp::sum;
  double divide_by = 0;             // avg only: the number of ranks on the last reduction of an element; 0: no division
  const double* factors = nullptr;  // premul_sum only: one per source (1 leaves a source as it is); null: a plain sum
};

/// Every destination = srcs[0] op srcs[1] op ... over `count` elements. One source is allowed (it is still divided,
/// multiplied, and its NaNs made canonical).
///
/// A source may be exactly a destination (the same pointer); any other overlap of the two is forbidden. Pointers may
/// have any alignment, below that of the element type too; 64 bytes is fastest. `streaming` asks for stores that go
/// past the caches. It pays for outputs that leave the cache anyhow (from about 1 MiB). Such stores are used where all
/// destinations have the same offset from a 64-byte boundary. They are fenced before the call returns, so that a
/// following release store orders them.
///
/// REQUIRES: at least one source and one destination; the op applies to the type; divide_by 0 or a whole number in [1,
/// 2^24]. Thread-safe, allocates nothing, does not throw. A call of a cache line costs a few nanoseconds.
void reduce(const Spec& spec, std::span<void* const> dsts, std::span<const void* const> srcs, std::size_t count,
            bool streaming);

/// `bytes` from src to every destination (a destination may be src itself, which is then left alone); `streaming` as
/// above, per destination. Destinations are written a cache-sized block at a time, so src is read from memory once.
void copy(std::span<void* const> dsts, const void* src, std::size_t bytes, bool streaming);

/// The instruction set that this machine's calls use: "avx512", "avx2" or "generic".
const char* isa();

}  // namespace tutti::reduce
