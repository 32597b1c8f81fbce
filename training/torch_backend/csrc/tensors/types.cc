#include "csrc/tensors/types.h"

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <iterator>
#include <optional>

namespace tutti_torch {

namespace {

using at::ScalarType;
using tutti::DataType;
using Op = c10d::ReduceOp::RedOpType;

std::optional<DataType> same_type(ScalarType type) {
  switch (type) {
    case ScalarType::Char: return DataType::i8;
    case ScalarType::Byte: return DataType::u8;
    case ScalarType::Int: return DataType::i32;
    case ScalarType::UInt32: return DataType::u32;
    case ScalarType::Long: return DataType::i64;
    case ScalarType::UInt64: return DataType::u64;
    case ScalarType::Half: return DataType::f16;
    case ScalarType::BFloat16: return DataType::bf16;
    case ScalarType::Float: return DataType::f32;
    case ScalarType::Double: return DataType::f64;
    case ScalarType::Float8_e4m3fn: return DataType::f8e4m3;
    case ScalarType::Float8_e5m2: return DataType::f8e5m2;
    default: return std::nullopt;
  }
}

std::optional<DataType> half_of_complex(ScalarType type) {
  switch (type) {
    case ScalarType::ComplexHalf: return DataType::f16;
    case ScalarType::ComplexFloat: return DataType::f32;
    case ScalarType::ComplexDouble: return DataType::f64;
    default: return std::nullopt;
  }
}

const char* name_of(Op op) {
  constexpr const char* names[] = {"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"};
  return op < std::size(names) ? names[op] : "an unknown op";
}

std::optional<tutti::ReduceOp> same_op(Op op) {
  switch (op) {
    case Op::SUM: return tutti::ReduceOp::sum;
    case Op::AVG: return tutti::ReduceOp::avg;
    case Op::PRODUCT: return tutti::ReduceOp::prod;
    case Op::MIN: return tutti::ReduceOp::min;
    case Op::MAX: return tutti::ReduceOp::max;
    case Op::PREMUL_SUM: return tutti::ReduceOp::premul_sum;
    case Op::BAND: return tutti::ReduceOp::band;
    case Op::BOR: return tutti::ReduceOp::bor;
    case Op::BXOR: return tutti::ReduceOp::bxor;
    default: return std::nullopt;
  }
}

std::optional<tutti::ReduceOp> op_of_bool(Op op) {
  switch (op) {
    case Op::SUM:
    case Op::MAX:
    case Op::BOR: return tutti::ReduceOp::max;
    case Op::PRODUCT:
    case Op::MIN:
    case Op::BAND: return tutti::ReduceOp::min;
    case Op::BXOR: return tutti::ReduceOp::bxor;
    default: return std::nullopt;
  }
}

double factor_of(const c10d::ReduceOp& op, const Caller& caller) {
  const auto* supplement = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TUTTI_TORCH_EXPECT(supplement != nullptr, caller, "op is PREMUL_SUM without a factor");
  return supplement->tensor_factor.defined() ? supplement->tensor_factor.item<double>() : supplement->double_factor;
}

}  // namespace

Elements elements_for_moving(ScalarType type) {
  if (const auto same = same_type(type)) return {*same, 1};
  if (const auto half = half_of_complex(type)) return {*half, 2};
  return {DataType::u8, c10::elementSize(type)};
}

Reduction reduction_for(ScalarType type, const c10d::ReduceOp& op, const Caller& caller) {
  Reduction reduction;
  std::optional<tutti::ReduceOp> found = same_op(op.op_);
  if (const auto same = same_type(type)) {
    reduction.elements.type = *same;
  } else if (type == ScalarType::Short || type == ScalarType::UInt16) {
    reduction.elements.type = DataType::i32;
    reduction.through = ScalarType::Int;
  } else if (type == ScalarType::Bool) {
    found = op_of_bool(op.op_);
  } else if (const auto half = half_of_complex(type)) {
    reduction.elements = {*half, 2};
    if (op.op_ != Op::SUM && op.op_ != Op::AVG && op.op_ != Op::PREMUL_SUM) found = std::nullopt;
  } else {
    found = std::nullopt;
  }
  if (found && tutti::is_bitwise(*found) && at::isFloatingType(type)) found = std::nullopt;
  if (op.op_ == Op::PREMUL_SUM && at::isIntegralType(type, /*includeBool=*/true)) found = std::nullopt;
  TUTTI_TORCH_EXPECT(found.has_value(), caller, name_of(op.op_), " of ", c10::toString(type),
                     " is none of the reductions that backend tutti has");
  reduction.op = *found;
  if (op.op_ == Op::PREMUL_SUM) reduction.factor = factor_of(op, caller);
  return reduction;
}

}  // namespace tutti_torch
