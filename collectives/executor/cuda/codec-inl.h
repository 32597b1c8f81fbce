// Sixteen bytes of a type's elements, widened and narrowed again: what reduce-inl.h computes with. The same bits as
// tests/support/oracles/reduce_reference.h, on host and device. Included by reduce-inl.h alone, which says what
// TUTTI_BOTH is.

/// Sixteen bytes as they lie in memory.
struct alignas(16) Raw {
  std::uint32_t words[4];
};

TUTTI_BOTH float float_of(std::uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  return __builtin_bit_cast(float, bits);
#endif
}
TUTTI_BOTH std::uint32_t bits_of(float value) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  return __builtin_bit_cast(std::uint32_t, value);
#endif
}

/// Integers, f32 and f64: computed with as they are.
template <class T>
struct Plain {
  using Wide = T;
  static constexpr int kCount = 16 / sizeof(T);
  static constexpr bool kNarrow = false;  // true: Wide holds more than the type
  TUTTI_BOTH void decode(const Raw& raw, Wide (&to)[kCount]) { memcpy(to, &raw, 16); }
  TUTTI_BOTH Raw encode(const Wide (&from)[kCount]) {
    Raw raw;
    if constexpr (T(1) / T(2) != T(0)) {  // a floating-point type: one NaN, whatever its origin
      T canonical[kCount];
      for (int i = 0; i < kCount; ++i) {
        canonical[i] = from[i];
        if (from[i] != from[i]) {
          const std::uint64_t bits = sizeof(T) == 4 ? 0x7fc00000 : 0x7ff8000000000000;
          memcpy(&canonical[i], &bits, sizeof(T));
        }
      }
      memcpy(&raw, canonical, 16);
    } else {
      memcpy(&raw, from, 16);
    }
    return raw;
  }
};

/// A float of fewer than 32 bits. `Format` turns one code into an f32 and back.
template <class Format>
struct Narrow {
  using Wide = float;
  static constexpr int kCount = 128 / Format::kBits;
  static constexpr int kPerWord = 32 / Format::kBits;
  static constexpr bool kNarrow = true;
  TUTTI_BOTH void decode(const Raw& raw, Wide (&to)[kCount]) {
    for (int i = 0; i < kCount; ++i) {
      const std::uint32_t word = raw.words[i / kPerWord] >> (i % kPerWord * Format::kBits);
      to[i] = Format::decode(word & ((1u << Format::kBits) - 1));
    }
  }
  TUTTI_BOTH Raw encode(const Wide (&from)[kCount]) {
    Raw raw = {};
    for (int i = 0; i < kCount; ++i) {
      raw.words[i / kPerWord] |= Format::encode(from[i]) << (i % kPerWord * Format::kBits);
    }
    return raw;
  }
};

/// Integer arithmetic: exact, and independent of flush-to-zero modes. As in reduce/codec-inl.h, one code at a time.
template <int kExponentBits, int kMantissaBits, bool kInfinity>
struct Minifloat {
  static constexpr int kBits = 1 + kExponentBits + kMantissaBits;
  static constexpr std::int32_t kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr int kShift = 23 - kMantissaBits;
  static constexpr std::int32_t kSign = 1 << (kExponentBits + kMantissaBits);
  static constexpr std::int32_t kTop = ((1 << kExponentBits) - 1) << kMantissaBits;
  static constexpr std::int32_t kLargest = kInfinity ? kTop : kSign - 2;  // where overflow ends
  static constexpr std::int32_t kNan = kInfinity ? kTop | 1 << (kMantissaBits - 1) : kSign - 1;
  static constexpr std::int32_t kSubnormalExponent = 1 - kBias - kMantissaBits;  // 2^this is the smallest subnormal

  TUTTI_BOTH float decode(std::uint32_t word) {
    const auto code = static_cast<std::int32_t>(word);
    const std::int32_t magnitude = code & (kSign - 1);
    std::int32_t bits = (magnitude << kShift) + ((127 - kBias) << 23);
    if (magnitude < (1 << kMantissaBits)) {
      const float unit = float_of(static_cast<std::uint32_t>(kSubnormalExponent + 127) << 23);
      bits = static_cast<std::int32_t>(bits_of(static_cast<float>(magnitude) * unit));
    }
    if constexpr (kInfinity) {
      if (magnitude >= kTop) bits = (magnitude << kShift) + ((255 - (1 << kExponentBits) + 1) << 23);
    } else {
      if (magnitude == kNan) bits = 0x7fc00000;
    }
    const auto sign = static_cast<std::uint32_t>(code & kSign) << (31 - kExponentBits - kMantissaBits);
    return float_of(static_cast<std::uint32_t>(bits) | sign);
  }

  TUTTI_BOTH std::uint32_t encode(float value) {
    const std::uint32_t bits = bits_of(value);
    const auto magnitude = static_cast<std::int32_t>(bits & 0x7fffffff);
    if (magnitude > 0x7f800000) return kNan;
    std::int32_t code = 0;
    if (magnitude < ((128 - kBias) << 23)) {
      // Adding 2^k, whose last place is the smallest subnormal, rounds to a whole number of those.
      const std::uint32_t magic = static_cast<std::uint32_t>(kSubnormalExponent + 23 + 127) << 23;
      code =
          static_cast<std::int32_t>(bits_of(float_of(static_cast<std::uint32_t>(magnitude)) + float_of(magic)) - magic);
    } else {
      const std::int32_t rebased = magnitude - ((127 - kBias) << 23);
      code = (rebased + ((1 << (kShift - 1)) - 1) + ((rebased >> kShift) & 1)) >> kShift;
      if (code > kLargest) code = kLargest;
    }
    return static_cast<std::uint32_t>(code) |
           ((bits >> (31 - kExponentBits - kMantissaBits)) & static_cast<std::uint32_t>(kSign));
  }
};

/// The upper half of an f32.
struct Bf16 {
  static constexpr int kBits = 16;
  TUTTI_BOTH float decode(std::uint32_t code) { return float_of(code << 16); }
  TUTTI_BOTH std::uint32_t encode(float value) {
    const std::uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;
    return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  }
};

struct F16 {
  static constexpr int kBits = 16;
#if defined(__CUDA_ARCH__)
  TUTTI_BOTH float decode(std::uint32_t code) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<unsigned short>(code)));
    return value;
  }
  TUTTI_BOTH std::uint32_t encode(float value) {
    unsigned short code;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(code) : "f"(value));
    return value != value ? 0x7e00 : code;
  }
#else
  TUTTI_BOTH float decode(std::uint32_t code) { return Minifloat<5, 10, true>::decode(code); }
  TUTTI_BOTH std::uint32_t encode(float value) { return Minifloat<5, 10, true>::encode(value); }
#endif
};

template <DataType kType>
struct CodecOf;
// clang-format off
template <> struct CodecOf<DataType::i8> { using type = Plain<std::int8_t>; };
template <> struct CodecOf<DataType::u8> { using type = Plain<std::uint8_t>; };
template <> struct CodecOf<DataType::i32> { using type = Plain<std::int32_t>; };
template <> struct CodecOf<DataType::u32> { using type = Plain<std::uint32_t>; };
template <> struct CodecOf<DataType::i64> { using type = Plain<std::int64_t>; };
template <> struct CodecOf<DataType::u64> { using type = Plain<std::uint64_t>; };
template <> struct CodecOf<DataType::f16> { using type = Narrow<F16>; };
template <> struct CodecOf<DataType::bf16> { using type = Narrow<Bf16>; };
template <> struct CodecOf<DataType::f32> { using type = Plain<float>; };
template <> struct CodecOf<DataType::f64> { using type = Plain<double>; };
template <> struct CodecOf<DataType::f8e4m3> { using type = Narrow<Minifloat<4, 3, false>>; };
template <> struct CodecOf<DataType::f8e5m2> { using type = Narrow<Minifloat<5, 2, true>>; };
// clang-format on
