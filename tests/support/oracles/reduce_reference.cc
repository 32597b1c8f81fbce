#include "tests/support/oracles/reduce_reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

namespace tutti::reduce::reference {
namespace {

struct Format {
  int exponent_bits;
  int mantissa_bits;
  bool infinity;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  int top() const { return (1 << exponent_bits) - 1; }
  int sign() const { return 1 << (exponent_bits + mantissa_bits); }
  int nan() const { return infinity ? top() << mantissa_bits | 1 << (mantissa_bits - 1) : sign() - 1; }
  int largest() const { return infinity ? top() << mantissa_bits : sign() - 2; }  // where overflow ends
};

Format format_of(DataType type) {
  switch (type) {
    case DataType::f16: return {5, 10, true};
    case DataType::bf16: return {8, 7, true};
    case DataType::f8e4m3: return {4, 3, false};
    default: return {5, 2, true};
  }
}

/// A 16- or 8-bit float in memory.
template <DataType kType>
struct Narrow {
  std::conditional_t<size_of(kType) == 2, std::uint16_t, std::uint8_t> code;
};

template <class T>
struct WideOf {
  using type = T;
};
template <DataType kType>
struct WideOf<Narrow<kType>> {
  using type = float;
};

template <class T>
T widen(T value) {
  return value;
}
template <DataType kType>
float widen(Narrow<kType> value) {
  return decode(kType, value.code);
}

template <class T, class Wide>
T narrow(Wide value) {
  if constexpr (std::is_integral_v<T>) {
    return value;
  } else if constexpr (std::is_floating_point_v<T>) {
    return std::isnan(value) ? std::numeric_limits<T>::quiet_NaN() : value;
  } else {
    T result;
    if constexpr (std::is_same_v<T, Narrow<DataType::f16>>) result = {encode(DataType::f16, value)};
    if constexpr (std::is_same_v<T, Narrow<DataType::bf16>>) result = {encode(DataType::bf16, value)};
    if constexpr (std::is_same_v<T, Narrow<DataType::f8e4m3>>) {
      result = {static_cast<std::uint8_t>(encode(DataType::f8e4m3, value))};
    }
    if constexpr (std::is_same_v<T, Narrow<DataType::f8e5m2>>) {
      result = {static_cast<std::uint8_t>(encode(DataType::f8e5m2, value))};
    }
    return result;
  }
}

template <class Wide>
Wide add(Wide a, Wide b) {
  if constexpr (std::is_integral_v<Wide>) {
    return static_cast<Wide>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  } else {
    return a + b;
  }
}

template <class Wide>
Wide multiply(Wide a, Wide b) {
  if constexpr (std::is_integral_v<Wide>) {
    return static_cast<Wide>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
  } else {
    return a * b;
  }
}

/// min or max.
template <class Wide>
Wide extreme(Wide a, Wide b, bool smaller) {
  if constexpr (std::is_floating_point_v<Wide>) {
    if (std::isnan(a)) return a;
    if (std::isnan(b)) return b;
    if (a == b) return std::signbit(a) == smaller ? a : b;  // -0 < +0
  }
  return (a < b) == smaller ? a : b;
}

template <class Wide>
Wide bits(Wide a, Wide b, ReduceOp op) {
  if constexpr (std::is_integral_v<Wide>) {
    if (op == ReduceOp::band) return static_cast<Wide>(a & b);
    if (op == ReduceOp::bor) return static_cast<Wide>(a | b);
    return static_cast<Wide>(a ^ b);
  }
  return a;  // floats have none
}

template <class Wide>
Wide divide(Wide sum, double by) {
  if constexpr (std::is_integral_v<Wide>) {
    // In 64 bits, since the number of ranks may not fit an 8-bit type.
    using Long = std::conditional_t<std::is_signed_v<Wide>, std::int64_t, std::uint64_t>;
    return static_cast<Wide>(static_cast<Long>(sum) / static_cast<Long>(by));
  } else {
    return sum / static_cast<Wide>(by);
  }
}

template <class Wide>
Wide factor_as(double factor) {
  if constexpr (std::is_floating_point_v<Wide>) {
    return static_cast<Wide>(factor);
  } else {
    using Limits = std::numeric_limits<Wide>;
    if (std::isnan(factor)) return 0;
    const double whole = std::trunc(factor);
    if (whole <= static_cast<double>(Limits::min())) return Limits::min();
    if (whole >= static_cast<double>(Limits::max())) return Limits::max();
    return static_cast<Wide>(whole);
  }
}

template <class T>
void reduce_as(const Spec& spec, std::span<void* const> dsts, std::span<const void* const> srcs, std::size_t count) {
  using Wide = typename WideOf<T>::type;
  for (std::size_t i = 0; i < count; ++i) {
    Wide result{};
    for (std::size_t s = 0; s < srcs.size(); ++s) {
      T element;
      std::memcpy(&element, static_cast<const char*>(srcs[s]) + i * sizeof(T), sizeof(T));
      Wide x = widen(element);
      if (spec.op == ReduceOp::premul_sum && spec.factors != nullptr) {
        x = widen(narrow<T>(multiply(x, factor_as<Wide>(spec.factors[s]))));
      }
      if (s == 0) {
        result = x;
        continue;
      }
      switch (spec.op) {
        case ReduceOp::prod: result = multiply(result, x); break;
        case ReduceOp::min: result = extreme(result, x, true); break;
        case ReduceOp::max: result = extreme(result, x, false); break;
        case ReduceOp::band:
        case ReduceOp::bor:
        case ReduceOp::bxor: result = bits(result, x, spec.op); break;
        case ReduceOp::sum:
        case ReduceOp::avg:
        case ReduceOp::premul_sum: result = add(result, x); break;
      }
    }
    if (spec.op == ReduceOp::avg && spec.divide_by != 0) result = divide(result, spec.divide_by);
    const T element = narrow<T>(result);
    for (void* dst : dsts) std::memcpy(static_cast<char*>(dst) + i * sizeof(T), &element, sizeof(T));
  }
}

}  // namespace

float decode(DataType type, std::uint16_t code) {
  const Format format = format_of(type);
  const int exponent = code >> format.mantissa_bits & format.top();
  const int mantissa = code & ((1 << format.mantissa_bits) - 1);
  const int magnitude = code & (format.sign() - 1);
  float value = 0;
  if (format.infinity ? magnitude > format.largest() : magnitude == format.nan()) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  if (format.infinity && exponent == format.top()) {
    value = std::numeric_limits<float>::infinity();
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<float>(mantissa), 1 - format.bias() - format.mantissa_bits);
  } else {
    value = std::ldexp(static_cast<float>(mantissa + (1 << format.mantissa_bits)),
                       exponent - format.bias() - format.mantissa_bits);
  }
  return (code & format.sign()) != 0 ? -value : value;
}

std::uint16_t encode(DataType type, float value) {
  const Format format = format_of(type);
  if (std::isnan(value)) return static_cast<std::uint16_t>(format.nan());
  const int sign = std::signbit(value) ? format.sign() : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (std::isinf(magnitude)) return static_cast<std::uint16_t>(sign | format.largest());
  if (magnitude == 0) return static_cast<std::uint16_t>(sign);
  // In units of the last place the number is rounded to a whole one; its exponent field starts at 1 for normal numbers
  // and for the subnormal ones below them, whose leading bit is missing. A carry out of the mantissa lands in the
  // field.
  const int exponent = std::max(std::ilogb(magnitude), 1 - format.bias());
  const double units = std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent));
  const int code = ((exponent + format.bias() - 1) << format.mantissa_bits) + static_cast<int>(units);
  return static_cast<std::uint16_t>(sign | std::min(code, format.largest()));
}

void reduce(const Spec& spec, std::span<void* const> dsts, std::span<const void* const> srcs, std::size_t count) {
  switch (spec.type) {
    case DataType::i8: return reduce_as<std::int8_t>(spec, dsts, srcs, count);
    case DataType::u8: return reduce_as<std::uint8_t>(spec, dsts, srcs, count);
    case DataType::i32: return reduce_as<std::int32_t>(spec, dsts, srcs, count);
    case DataType::u32: return reduce_as<std::uint32_t>(spec, dsts, srcs, count);
    case DataType::i64: return reduce_as<std::int64_t>(spec, dsts, srcs, count);
    case DataType::u64: return reduce_as<std::uint64_t>(spec, dsts, srcs, count);
    case DataType::f16: return reduce_as<Narrow<DataType::f16>>(spec, dsts, srcs, count);
    case DataType::bf16: return reduce_as<Narrow<DataType::bf16>>(spec, dsts, srcs, count);
    case DataType::f32: return reduce_as<float>(spec, dsts, srcs, count);
    case DataType::f64: return reduce_as<double>(spec, dsts, srcs, count);
    case DataType::f8e4m3: return reduce_as<Narrow<DataType::f8e4m3>>(spec, dsts, srcs, count);
    case DataType::f8e5m2: return reduce_as<Narrow<DataType::f8e5m2>>(spec, dsts, srcs, count);
  }
}

}  // namespace tutti::reduce::reference
