// What reduce.h promises, written as plainly as possible: one element at a time, numbers as their definition says.
//
// The fast bodies and the kernels are tested against this, to the bit. Slow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "collectives/reduce/reduce.h"
#include "tutti/types.hpp"

namespace tutti::reduce::reference {

/// The value of a 16- or 8-bit float's code. REQUIRES: type is f16, bf16, f8e4m3 or f8e5m2, also below.
float decode(DataType type, std::uint16_t code);

/// The nearest code, ties to even; overflow and NaN as reduce.h says.
std::uint16_t encode(DataType type, float value);

/// Computes what reduce::reduce does.
void reduce(const Spec& spec, std::span<void* const> dsts, std::span<const void* const> srcs, std::size_t count);

}  // namespace tutti::reduce::reference
