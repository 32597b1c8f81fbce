// The factor of ncclRedOpCreatePreMulSum: one element of NCCL's types, as the double that Tutti's premul_sum takes.
#pragma once

#include <optional>

#include "tutti/tutti.hpp"

namespace tutti::nccl {

/// The value of the element of `type` at `element` (host memory, any alignment). Every value of every type is exact,
/// but for 64-bit integers that a double does not hold: none is given for those.
std::optional<double> value_of(DataType type, const void* element);

}  // namespace tutti::nccl
