// What torch calls an element type and a reduction, in Tutti's words.
//
//   const Elements e = elements_for_moving(tensor.scalar_type());   // count = tensor.numel() * e.per_element
//   const Reduction r = reduction_for(tensor.scalar_type(), op, {rank, "all_reduce"});
//
// Moving (broadcast, gathers, scatters, all-to-all, send): every type. What Tutti has no type for goes as bytes,
//   complex numbers as pairs.
// Reducing, beside the types that are the same in both:
//   bool             as u8 that is 0 or 1: sum, max and bor are "or"; prod, min and band are "and"; bxor is itself
//   complex          as pairs: sum, avg and premul_sum by a real factor
//   integers         all but premul_sum, for which Tutti would round the factor to the type
//   int16, uint16    through int32 (Reduction::through): sum and prod are exact modulo 2^16, as in a 16-bit type
//   other fp8 types, quantised and packed types: cannot be reduced
// Errors: ValueError, one sentence that names the caller, for a reduction that a type does not have.
#pragma once

#include <cstddef>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "csrc/base/errors.h"
#include "tutti/types.hpp"

namespace tutti_torch {

/// Tutti's type of a tensor's elements, and how many each of them is.
struct Elements {
  tutti::DataType type = tutti::DataType::u8;
  std::size_t per_element = 1;
};

struct Reduction {
  Elements elements;
  tutti::ReduceOp op = tutti::ReduceOp::sum;
  double factor = 1.0;                                 // premul_sum
  at::ScalarType through = at::ScalarType::Undefined;  // convert to this before, and back after; Undefined: as it is
};

Elements elements_for_moving(at::ScalarType type);

Reduction reduction_for(at::ScalarType type, const c10d::ReduceOp& op, const Caller& caller);

}  // namespace tutti_torch
