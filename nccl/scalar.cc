#include "nccl/scalar.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace tutti::nccl {
namespace {

template <class T>
T load(const void* element) {
  T value;
  std::memcpy(&value, element, sizeof value);
  return value;
}

template <class T>
std::optional<double> whole(const void* element) {
  const T value = load<T>(element);
  const double wide = static_cast<double>(value);
  // 2^64 and 2^63 are doubles, but not values of T: converting them back would be undefined.
  if (wide >= std::ldexp(1.0, std::numeric_limits<T>::digits) || static_cast<T>(wide) != value) return std::nullopt;
  return wide;
}

/// A sign, `exponent` bits and `fraction` bits. `infinities`: the last exponent is for them and for NaN, as IEEE has
/// it; else (e4m3) only all ones is NaN.
double small_float(unsigned bits, int exponent, int fraction, bool infinities) {
  const unsigned last = (1U << exponent) - 1;
  const unsigned e = bits >> fraction & last;
  const unsigned f = bits & ((1U << fraction) - 1);
  const int bias = (1 << (exponent - 1)) - 1;
  const double sign = (bits >> (exponent + fraction) & 1) != 0 ? -1.0 : 1.0;
  if (e == last && infinities) return f == 0 ? sign * HUGE_VAL : std::numeric_limits<double>::quiet_NaN();
  if (e == last && f == (1U << fraction) - 1) return std::numeric_limits<double>::quiet_NaN();
  const double mantissa = std::ldexp(f, -fraction) + (e == 0 ? 0.0 : 1.0);
  return sign * std::ldexp(mantissa, (e == 0 ? 1 : static_cast<int>(e)) - bias);
}

}  // namespace

std::optional<double> value_of(DataType type, const void* element) {
  switch (type) {
    case DataType::i8: return whole<std::int8_t>(element);
    case DataType::u8: return whole<std::uint8_t>(element);
    case DataType::i32: return whole<std::int32_t>(element);
    case DataType::u32: return whole<std::uint32_t>(element);
    case DataType::i64: return whole<std::int64_t>(element);
    case DataType::u64: return whole<std::uint64_t>(element);
    case DataType::f16: return small_float(load<std::uint16_t>(element), 5, 10, true);
    case DataType::bf16: return small_float(load<std::uint16_t>(element), 8, 7, true);
    case DataType::f32: return load<float>(element);
    case DataType::f64: return load<double>(element);
    case DataType::f8e4m3: return small_float(load<std::uint8_t>(element), 4, 3, false);
    case DataType::f8e5m2: return small_float(load<std::uint8_t>(element), 5, 2, true);
  }
  return std::nullopt;
}

}  // namespace tutti::nccl
