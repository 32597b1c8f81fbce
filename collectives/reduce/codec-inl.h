// What the elements of one Raw vector are: decode spreads them over `kParts` vectors of the accumulator's type `Wide`,
// encode rounds and packs them again. The order of elements inside the parts is each codec's own affair: it only has to
// be the same both ways. Included by body-inl.h alone; see vector-inl.h.

/// A Raw vector's elements, widened.
template <class Wide, int kParts>
struct Parts {
  V<Wide> part[kParts];
};

/// Every NaN with the one bit pattern of reduce.h.
TUTTI_INLINE V<float> canonical(V<float> x) {
  const V<std::int32_t> nan = V<std::int32_t>{} + 0x7fc00000;
  return (V<float>)(x != x ? nan : (V<std::int32_t>)x);
}
TUTTI_INLINE V<double> canonical(V<double> x) {
  const V<std::int64_t> nan = V<std::int64_t>{} + 0x7ff8000000000000;
  return (V<double>)(x != x ? nan : (V<std::int64_t>)x);
}

/// canonical() for a pair, where the arithmetic units are the limit, not memory: one comparison and a branch that is
/// hardly ever taken, instead of two selects.
TUTTI_INLINE Parts<float, 2> canonical_pair(Parts<float, 2> x) {
  if (__builtin_expect(any_nan(x.part[0], x.part[1]), 0)) return {{canonical(x.part[0]), canonical(x.part[1])}};
  return x;
}

/// Integers: accumulated as they are.
template <class T>
struct Plain {
  using Wide = T;
  static constexpr std::size_t kSize = sizeof(T);
  static constexpr int kParts = 1;
  static constexpr bool kNarrow = false;  // true: `Wide` holds more than the type
  TUTTI_INLINE Parts<T, 1> decode(Raw raw) { return {{(V<T>)raw}}; }
  TUTTI_INLINE Raw encode(Parts<T, 1> x) { return (Raw)x.part[0]; }
};

/// f32 and f64.
template <class T>
struct Floating : Plain<T> {
  TUTTI_INLINE Raw encode(Parts<T, 1> x) { return (Raw)canonical(x.part[0]); }
};

/// The upper half of an f32. Even and odd elements of a vector are the lower and upper halves of 32-bit words, so
/// widening is a shift and a mask, with no shuffle.
struct Bf16 {
  using Wide = float;
  static constexpr std::size_t kSize = 2;
  static constexpr int kParts = 2;
  static constexpr bool kNarrow = true;
  TUTTI_INLINE Parts<float, 2> decode(Raw raw) { return {{(V<float>)(raw << 16), (V<float>)(raw & 0xffff0000u)}}; }
#if TUTTI_REDUCE_VECTOR_BYTES == 64
  // Rounds 16-bit halves instead of whole words, so that each instruction serves both parts: 6 for 32 elements, where
  // the words take 12. The kept half goes up by one where the dropped half is above the middle, or at it and the kept
  // half is odd. Canonical NaNs have a dropped half of 0.
  TUTTI_INLINE Raw encode(Parts<float, 2> x) {
    x = canonical_pair(x);
    const __m512i even = (__m512i)x.part[0];
    const __m512i odd = (__m512i)x.part[1];
    constexpr __mmask32 kOdd = 0xaaaaaaaa;
    const __m512i kept = _mm512_mask_blend_epi16(kOdd, _mm512_srli_epi32(even, 16), odd);
    const __m512i dropped = _mm512_mask_blend_epi16(kOdd, even, _mm512_slli_epi32(odd, 16));
    const __m512i odd_bit = _mm512_and_si512(kept, _mm512_set1_epi16(1));
    const __mmask32 up = _mm512_cmpgt_epu16_mask(_mm512_adds_epu16(dropped, odd_bit), _mm512_set1_epi16(-0x8000));
    return (Raw)_mm512_mask_sub_epi16(kept, up, kept, _mm512_set1_epi16(-1));
  }
#else
  TUTTI_INLINE Raw rounded(V<float> x) {  // the result is in the upper halves
    const Raw bits = (Raw)x;
    return bits + 0x7fffu + ((bits >> 16) & 1u);
  }
  TUTTI_INLINE Raw encode(Parts<float, 2> x) {
    x = canonical_pair(x);
    return (rounded(x.part[0]) >> 16) | (rounded(x.part[1]) & 0xffff0000u);
  }
#endif
};

/// A float of kSize bytes in a 32-bit lane, by integer arithmetic: exact, and independent of flush-to-zero modes.
template <int kExponentBits, int kMantissaBits, bool kInfinity>
struct Minifloat {
  using Lanes = V<std::int32_t>;
  static constexpr std::int32_t kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr int kShift = 23 - kMantissaBits;
  static constexpr std::int32_t kSign = 1 << (kExponentBits + kMantissaBits);
  static constexpr std::int32_t kTop = ((1 << kExponentBits) - 1) << kMantissaBits;  // exponent of all ones
  static constexpr std::int32_t kLargest = kInfinity ? kTop : kSign - 2;             // where overflow ends
  static constexpr std::int32_t kNan = kInfinity ? kTop | 1 << (kMantissaBits - 1) : kSign - 1;
  static constexpr std::int32_t kSubnormalExponent = 1 - kBias - kMantissaBits;  // 2^this is the smallest subnormal

  static constexpr float power_of_2(int exponent) { return __builtin_bit_cast(float, (exponent + 127) << 23); }

  /// The code in the lower bits of each lane, zeros above.
  TUTTI_INLINE V<float> decode(Lanes code) {
    const Lanes magnitude = code & (kSign - 1);
    const Lanes normal = (magnitude << kShift) + ((127 - kBias) << 23);
    const Lanes small = (Lanes)(__builtin_convertvector(magnitude, V<float>) * power_of_2(kSubnormalExponent));
    Lanes bits = magnitude < (1 << kMantissaBits) ? small : normal;
    if constexpr (kInfinity) {
      const Lanes special = (magnitude << kShift) + ((255 - (1 << kExponentBits) + 1) << 23);
      bits = magnitude >= kTop ? special : bits;
    } else {
      bits = magnitude == kNan ? Lanes{} + 0x7fc00000 : bits;
    }
    return (V<float>)(bits | (code & kSign) << (31 - kExponentBits - kMantissaBits));
  }

  TUTTI_INLINE Lanes encode(V<float> x) {
    const Lanes bits = (Lanes)x;
    const Lanes magnitude = bits & 0x7fffffff;
    const Lanes rebased = magnitude - ((127 - kBias) << 23);
    Lanes normal = (rebased + ((1 << (kShift - 1)) - 1) + ((rebased >> kShift) & 1)) >> kShift;
    normal = normal > kLargest ? Lanes{} + kLargest : normal;
    // Below the smallest normal number: adding 2^k, whose last place is the smallest subnormal, rounds to a whole
    // number of those.
    constexpr float kMagic = power_of_2(kSubnormalExponent + 23);
    const Lanes small = (Lanes)((V<float>)magnitude + kMagic) - __builtin_bit_cast(std::int32_t, kMagic);
    Lanes code = magnitude < ((128 - kBias) << 23) ? small : normal;
    code = code | ((bits >> (31 - kExponentBits - kMantissaBits)) & kSign);
    return magnitude > 0x7f800000 ? Lanes{} + kNan : code;
  }
};

/// Minifloats of `kBits` bits, 32 / kBits of them side by side in a lane: part k holds the k-th of every lane.
template <class Format, int kBits>
struct Packed {
  using Wide = float;
  static constexpr std::size_t kSize = kBits / 8;
  static constexpr int kParts = 32 / kBits;
  static constexpr bool kNarrow = true;
  TUTTI_INLINE Parts<float, kParts> decode(Raw raw) {
    Parts<float, kParts> x;
    for (int k = 0; k < kParts; ++k) {
      x.part[k] = Format::decode((V<std::int32_t>)((raw >> (kBits * k)) & ((1u << kBits) - 1)));
    }
    return x;
  }
  TUTTI_INLINE Raw encode(Parts<float, kParts> x) {
    Raw raw = (Raw)Format::encode(x.part[0]);
    for (int k = 1; k < kParts; ++k) raw |= (Raw)Format::encode(x.part[k]) << (kBits * k);
    return raw;
  }
};

using F8e4m3 = Packed<Minifloat<4, 3, false>, 8>;
using F8e5m2 = Packed<Minifloat<5, 2, true>, 8>;

#if TUTTI_REDUCE_VECTOR_BYTES == 16 && !defined(__aarch64__)
using F16 = Packed<Minifloat<5, 10, true>, 16>;
#else
/// f16 by the conversion instructions, which work on neighbouring elements: the parts are the vector's halves.
struct F16 {
  using Wide = float;
  static constexpr std::size_t kSize = 2;
  static constexpr int kParts = 2;
  static constexpr bool kNarrow = true;
#if TUTTI_REDUCE_VECTOR_BYTES == 16
  TUTTI_INLINE Parts<float, 2> decode(Raw raw) {
    const float16x8_t halves = (float16x8_t)raw;
    return {{(V<float>)vcvt_f32_f16(vget_low_f16(halves)), (V<float>)vcvt_high_f32_f16(halves)}};
  }
  TUTTI_INLINE Raw encode(Parts<float, 2> x) {
    x = canonical_pair(x);
    return (Raw)vcvt_high_f16_f32(vcvt_f16_f32((float32x4_t)x.part[0]), (float32x4_t)x.part[1]);
  }
#elif TUTTI_REDUCE_VECTOR_BYTES == 64
  static constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  TUTTI_INLINE Parts<float, 2> decode(Raw raw) {
    return {{(V<float>)_mm512_cvtph_ps(_mm512_castsi512_si256((__m512i)raw)),
             (V<float>)_mm512_cvtph_ps(_mm512_extracti64x4_epi64((__m512i)raw, 1))}};
  }
  TUTTI_INLINE Raw encode(Parts<float, 2> x) {
    x = canonical_pair(x);
    const __m256i low = _mm512_cvtps_ph((__m512)x.part[0], kNearest);
    const __m256i high = _mm512_cvtps_ph((__m512)x.part[1], kNearest);
    return (Raw)_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  }
#else
  static constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  TUTTI_INLINE Parts<float, 2> decode(Raw raw) {
    return {{(V<float>)_mm256_cvtph_ps(_mm256_castsi256_si128((__m256i)raw)),
             (V<float>)_mm256_cvtph_ps(_mm256_extracti128_si256((__m256i)raw, 1))}};
  }
  TUTTI_INLINE Raw encode(Parts<float, 2> x) {
    x = canonical_pair(x);
    const __m128i low = _mm256_cvtps_ph((__m256)x.part[0], kNearest);
    const __m128i high = _mm256_cvtps_ph((__m256)x.part[1], kNearest);
    return (Raw)_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
  }
#endif
};
#endif
