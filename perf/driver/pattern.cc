#include "perf/driver/pattern.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/check.h"

namespace tutti::perf {
namespace {

/// A floating format narrower than 32 bits: 1 sign bit, then exponent, then mantissa.
struct Narrow {
  int exponent_bits;
  int mantissa_bits;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
};

Narrow narrow_format(DataType type) {
  switch (type) {
    case DataType::f16: return {5, 10};
    case DataType::bf16: return {8, 7};
    case DataType::f8e4m3: return {4, 3};
    default: return {5, 2};  // f8e5m2
  }
}

bool is_narrow(DataType type) {
  return type == DataType::f16 || type == DataType::bf16 || type == DataType::f8e4m3 || type == DataType::f8e5m2;
}

bool is_float(DataType type) { return is_narrow(type) || type == DataType::f32 || type == DataType::f64; }

bool is_signed(DataType type) {
  return is_float(type) || type == DataType::i8 || type == DataType::i32 || type == DataType::i64;
}

/// REQUIRES: zero, or a normal number of the format.
std::uint16_t encode_narrow(double value, Narrow format) {
  const std::uint32_t sign = std::signbit(value) ? 1 : 0;
  const int width = 1 + format.exponent_bits + format.mantissa_bits;
  std::uint32_t bits = 0;
  if (value != 0) {
    int exponent = 0;
    const double fraction = std::frexp(std::fabs(value), &exponent);  // 0.5 <= fraction < 1
    const double mantissa = std::ldexp(2 * fraction - 1, format.mantissa_bits);
    const int biased = exponent - 1 + format.bias();
    TUTTI_CHECK_EQ(mantissa, std::floor(mantissa));
    TUTTI_CHECK(biased > 0 && biased < (1 << format.exponent_bits));
    bits = static_cast<std::uint32_t>(biased) << format.mantissa_bits | static_cast<std::uint32_t>(mantissa);
  }
  return static_cast<std::uint16_t>(sign << (width - 1) | bits);
}

double decode_narrow(std::uint16_t bits, DataType type) {
  const Narrow format = narrow_format(type);
  const int exponent_mask = (1 << format.exponent_bits) - 1;
  const int mantissa_mask = (1 << format.mantissa_bits) - 1;
  const int mantissa = bits & mantissa_mask;
  const int exponent = (bits >> format.mantissa_bits) & exponent_mask;
  const bool negative = (bits >> (format.exponent_bits + format.mantissa_bits)) & 1;
  double value = 0;
  if (type == DataType::f8e4m3 ? exponent == exponent_mask && mantissa == mantissa_mask : exponent == exponent_mask) {
    value = mantissa != 0 ? NAN : INFINITY;  // f8e4m3 has no infinity: its mantissa is not 0 here
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, 1 - format.bias() - format.mantissa_bits);
  } else {
    value = std::ldexp(mantissa + (1 << format.mantissa_bits), exponent - format.bias() - format.mantissa_bits);
  }
  return negative ? -value : value;
}

template <class T>
void store(double value, void* element) {
  const T typed = static_cast<T>(value);
  std::memcpy(element, &typed, sizeof(T));
}

template <class T>
double load(const void* element) {
  T typed;
  std::memcpy(&typed, element, sizeof(T));
  return static_cast<double>(typed);
}

/// Well mixed bits of two numbers (the finalizer of MurmurHash3).
std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t h = a * 0x9e3779b97f4a7c15 + b + 0x7f4a7c15;
  h = (h ^ h >> 33) * 0xff51afd7ed558ccd;
  h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53;
  return h ^ h >> 33;
}

/// 0 .. bound, or -bound .. bound.
double bounded(std::uint64_t hash, std::uint64_t bound, bool with_sign) {
  if (!with_sign) return static_cast<double>(hash % (bound + 1));
  return static_cast<double>(hash % (2 * bound + 1)) - static_cast<double>(bound);
}

/// Chooses `chosen` of `among` by position, another set at each position.
bool is_chosen(int index, std::size_t position, std::uint64_t chosen, std::uint64_t among) {
  return (static_cast<std::uint64_t>(index) + mix(77, position)) % among < chosen;
}

constexpr std::uint64_t kLargest = 100;  // keeps numbers readable where the type would allow huge ones

double term_of_sum(int rank, std::size_t position, std::uint64_t limit, std::uint64_t ranks, bool with_sign) {
  const std::uint64_t hash = mix(static_cast<std::uint64_t>(rank), position);
  const std::uint64_t bound = std::min(limit / ranks, kLargest);
  if (bound > 0) return bounded(hash, bound, with_sign);
  return is_chosen(rank, position, limit, ranks) ? bounded(hash, 1, with_sign) : 0;
}

double term_of_average(int rank, std::size_t position, std::uint64_t limit, std::uint64_t ranks, bool with_sign) {
  const std::uint64_t half = limit / 2;
  const double v = bounded(mix(1000, position), std::min(half / ranks, kLargest / 2), with_sign);
  const int pair = rank / 2;
  const std::uint64_t pairs = ranks / 2;
  if (static_cast<std::uint64_t>(pair) >= pairs) return v;  // the last of an odd number
  const std::uint64_t hash = mix(2000 + static_cast<std::uint64_t>(pair), position);
  const std::uint64_t bound = std::min(half / (2 * pairs), kLargest / 2);
  double d = bounded(hash, std::max<std::uint64_t>(bound, 1), with_sign);
  if (bound == 0 && !is_chosen(pair, position, half / 2, pairs)) d = 0;
  if (!with_sign) d = std::min(d, v);
  return rank % 2 == 0 ? v + d : v - d;
}

double factor_of_product(int rank, std::size_t position, std::uint64_t ranks, DataType type) {
  constexpr std::uint64_t kFactors = 6;
  const std::uint64_t hash = mix(static_cast<std::uint64_t>(rank), position);
  const double sign = is_signed(type) && (hash & 1) != 0 ? -1 : 1;
  if (!is_chosen(rank, position, std::min(kFactors, ranks), ranks)) return sign;
  switch (hash >> 1 & 3) {
    case 0: return sign;
    case 1: return is_float(type) ? sign / 2 : sign;
    default: return sign * 2;
  }
}

}  // namespace

double exact_integer_limit(DataType type) {
  switch (type) {
    case DataType::i8: return 127;
    case DataType::u8: return 255;
    case DataType::i32: return 2147483647.0;
    case DataType::u32: return 4294967295.0;
    case DataType::f32: return 16777216;
    case DataType::f16: return 2048;
    case DataType::bf16: return 256;
    case DataType::f8e4m3: return 16;
    case DataType::f8e5m2: return 8;
    case DataType::i64:
    case DataType::u64:
    case DataType::f64: break;  // 2^53: what this file's own arithmetic holds
  }
  return 9007199254740992.0;
}

void encode(double value, DataType type, void* element) {
  switch (type) {
    case DataType::i8: return store<std::int8_t>(value, element);
    case DataType::u8: return store<std::uint8_t>(value, element);
    case DataType::i32: return store<std::int32_t>(value, element);
    case DataType::u32: return store<std::uint32_t>(value, element);
    case DataType::i64: return store<std::int64_t>(value, element);
    case DataType::u64: return store<std::uint64_t>(value, element);
    case DataType::f32: return store<float>(value, element);
    case DataType::f64: return store<double>(value, element);
    case DataType::f16:
    case DataType::bf16: return store<std::uint16_t>(encode_narrow(value, narrow_format(type)), element);
    case DataType::f8e4m3:
    case DataType::f8e5m2: return store<std::uint8_t>(encode_narrow(value, narrow_format(type)), element);
  }
}

double decode(const void* element, DataType type) {
  switch (type) {
    case DataType::i8: return load<std::int8_t>(element);
    case DataType::u8: return load<std::uint8_t>(element);
    case DataType::i32: return load<std::int32_t>(element);
    case DataType::u32: return load<std::uint32_t>(element);
    case DataType::i64: return load<std::int64_t>(element);
    case DataType::u64: return load<std::uint64_t>(element);
    case DataType::f32: return load<float>(element);
    case DataType::f64: return load<double>(element);
    case DataType::f16:
    case DataType::bf16: return decode_narrow(static_cast<std::uint16_t>(load<std::uint16_t>(element)), type);
    case DataType::f8e4m3:
    case DataType::f8e5m2: break;
  }
  return decode_narrow(static_cast<std::uint16_t>(load<std::uint8_t>(element)), type);
}

Pattern::Pattern(DataType type, ReduceOp op, int ranks)
    : type_(type), op_(op), ranks_(ranks), tables_(static_cast<std::size_t>(ranks) + 1) {}

double combine_bits(double a, double b, ReduceOp op) {
  const auto x = static_cast<std::int64_t>(a);
  const auto y = static_cast<std::int64_t>(b);
  return static_cast<double>(op == ReduceOp::band ? x & y : op == ReduceOp::bor ? x | y : x ^ y);
}

double Pattern::factor(int rank) const { return op_ == ReduceOp::premul_sum && rank % 2 == 0 ? 2 : 1; }

double Pattern::contribution(int rank, std::size_t position) const {
  const auto limit = static_cast<std::uint64_t>(exact_integer_limit(type_));
  const auto ranks = static_cast<std::uint64_t>(ranks_);
  const bool with_sign = is_signed(type_);
  switch (op_) {
    case ReduceOp::sum: return term_of_sum(rank, position, limit, ranks, with_sign);
    case ReduceOp::premul_sum: return term_of_sum(rank, position, limit / 2, ranks, with_sign);
    case ReduceOp::avg: return term_of_average(rank, position, limit, ranks, with_sign);
    case ReduceOp::prod: return factor_of_product(rank, position, ranks, type_);
    case ReduceOp::min:
    case ReduceOp::max:
    case ReduceOp::band:
    case ReduceOp::bor:
    case ReduceOp::bxor: break;
  }
  return bounded(mix(static_cast<std::uint64_t>(rank), position), std::min(limit, kLargest), with_sign);
}

double Pattern::reduced(std::size_t position) const {
  double result = contribution(0, position) * factor(0);
  for (int rank = 1; rank < ranks_; ++rank) {
    const double value = contribution(rank, position) * factor(rank);
    switch (op_) {
      case ReduceOp::sum:
      case ReduceOp::premul_sum:
      case ReduceOp::avg: result += value; break;
      case ReduceOp::prod: result *= value; break;
      case ReduceOp::min: result = std::min(result, value); break;
      case ReduceOp::max: result = std::max(result, value); break;
      case ReduceOp::band:
      case ReduceOp::bor:
      case ReduceOp::bxor: result = combine_bits(result, value, op_); break;
    }
  }
  return op_ == ReduceOp::avg ? result / ranks_ : result;
}

const std::vector<std::byte>& Pattern::table(int source) {
  auto& made = tables_[static_cast<std::size_t>(source == kReduced ? ranks_ : source)];
  if (made.empty()) {
    const std::size_t width = size_of(type_);
    made.resize(kPeriod * width);
    for (std::size_t i = 0; i < kPeriod; ++i) {
      encode(source == kReduced ? reduced(i) : contribution(source, i), type_, made.data() + i * width);
    }
  }
  return made;
}

void Pattern::fill(void* data, std::size_t count, int source, std::size_t phase) {
  const std::vector<std::byte>& period = table(source);
  const std::size_t width = size_of(type_);
  auto* to = static_cast<std::byte*>(data);
  std::size_t at = (phase + shift_) % kPeriod;
  while (count > 0) {
    const std::size_t piece = std::min(count, kPeriod - at);
    std::memcpy(to, period.data() + at * width, piece * width);
    to += piece * width;
    count -= piece;
    at = 0;
  }
}

std::size_t Pattern::count_wrong(const void* data, std::size_t count, int source, std::size_t phase) {
  const std::vector<std::byte>& period = table(source);
  const std::size_t width = size_of(type_);
  const auto* from = static_cast<const std::byte*>(data);
  std::size_t at = (phase + shift_) % kPeriod;
  std::size_t wrong = 0;
  while (count > 0) {
    const std::size_t piece = std::min(count, kPeriod - at);
    const std::byte* expected = period.data() + at * width;
    if (std::memcmp(from, expected, piece * width) != 0) {
      for (std::size_t i = 0; i < piece; ++i) {
        // As numbers: a zero may have either sign.
        if (decode(from + i * width, type_) != decode(expected + i * width, type_)) ++wrong;
      }
    }
    from += piece * width;
    count -= piece;
    at = 0;
  }
  return wrong;
}

}  // namespace tutti::perf
