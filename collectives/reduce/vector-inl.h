// One vector of the instruction set that the including file is compiled for: load, store, partial load and store.
//
// Written with the compilers' vector extension (GCC and Clang), with intrinsics only where it has no word for a thing.
// Included by body-inl.h alone, inside each body's own anonymous namespace: every function here exists once per body.
// The including file defines TUTTI_REDUCE_VECTOR_BYTES (16, 32 or 64).

constexpr std::size_t kBytes = TUTTI_REDUCE_VECTOR_BYTES;
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "partial vectors and 16-bit halves assume little endian");

#define TUTTI_INLINE static inline __attribute__((always_inline))

template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(kBytes)));  // NOLINT(modernize-use-using): the attribute wants a typedef
};
template <class T>
using V = typename VectorOf<T>::type;
using Raw = V<std::uint32_t>;  // bytes as they lie in memory

template <class T>
TUTTI_INLINE T load_as(const unsigned char* from) {
  T value;
  __builtin_memcpy(&value, from, sizeof(T));
  return value;
}

template <class T>
TUTTI_INLINE void store_as(unsigned char* to, T value) {
  __builtin_memcpy(to, &value, sizeof(T));
}

TUTTI_INLINE Raw load(const unsigned char* from) { return load_as<Raw>(from); }
TUTTI_INLINE void store(unsigned char* to, Raw value) { store_as(to, value); }

/// Past the caches, where the processor has such stores (base/cpu.h). REQUIRES: `to` is a multiple of kBytes.
TUTTI_INLINE void stream(unsigned char* to, Raw value) {
#if TUTTI_REDUCE_VECTOR_BYTES == 64
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), (__m512i)value);
#elif TUTTI_REDUCE_VECTOR_BYTES == 32
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), (__m256i)value);
#elif defined(__SSE2__)
  _mm_stream_si128(reinterpret_cast<__m128i*>(to), (__m128i)value);
#else
  store(to, value);
#endif
}

TUTTI_INLINE void stream_fence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

/// Whether any lane of either is a NaN; where that has no short instruction, true.
TUTTI_INLINE bool any_nan(V<float> a, V<float> b) {
#if TUTTI_REDUCE_VECTOR_BYTES == 64
  return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_UNORD_Q) != 0;
#elif TUTTI_REDUCE_VECTOR_BYTES == 32
  return _mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_UNORD_Q)) != 0;
#elif defined(__SSE2__)
  return _mm_movemask_ps(_mm_cmpunord_ps((__m128)a, (__m128)b)) != 0;
#elif defined(__aarch64__)
  return vminvq_u32((uint32x4_t)((a == a) & (b == b))) == 0;
#else
  return true;
#endif
}

#if TUTTI_REDUCE_VECTOR_BYTES == 64

TUTTI_INLINE __mmask64 first_bytes(std::size_t n) { return (std::uint64_t{1} << n) - 1; }

/// The first n bytes, zeros behind; nothing else is touched. REQUIRES: n < kBytes, also below.
TUTTI_INLINE Raw load_first(const unsigned char* from, std::size_t n) {
  return (Raw)_mm512_maskz_loadu_epi8(first_bytes(n), from);
}
TUTTI_INLINE void store_first(unsigned char* to, Raw value, std::size_t n) {
  _mm512_mask_storeu_epi8(to, first_bytes(n), (__m512i)value);
}

#else

// Assembled in registers from two overlapping loads: bytes written to a buffer and read back as one vector would stall
// on store forwarding, which costs more than the rest of a small call.
TUTTI_INLINE std::uint64_t load_under_8(const unsigned char* from, std::size_t n) {
  if (n >= 4) {
    return load_as<std::uint32_t>(from) | std::uint64_t{load_as<std::uint32_t>(from + n - 4)} << (8 * (n - 4));
  }
  if (n >= 2) {
    return load_as<std::uint16_t>(from) | std::uint64_t{load_as<std::uint16_t>(from + n - 2)} << (8 * (n - 2));
  }
  return n == 1 ? *from : 0;
}

TUTTI_INLINE void store_under_8(unsigned char* to, std::uint64_t value, std::size_t n) {
  if (n >= 4) {
    store_as(to, static_cast<std::uint32_t>(value));
    store_as(to + n - 4, static_cast<std::uint32_t>(value >> (8 * (n - 4))));
  } else if (n >= 2) {
    store_as(to, static_cast<std::uint16_t>(value));
    store_as(to + n - 2, static_cast<std::uint16_t>(value >> (8 * (n - 2))));
  } else if (n == 1) {
    *to = static_cast<unsigned char>(value);
  }
}

/// The first n bytes, zeros behind; nothing else is touched. REQUIRES: n < kBytes, also below.
TUTTI_INLINE Raw load_first(const unsigned char* from, std::size_t n) {
  V<std::uint64_t> words = {};
  for (std::size_t i = 0; i < kBytes / 8; ++i) {
    const std::size_t left = n > 8 * i ? n - 8 * i : 0;
    words[i] = left >= 8 ? load_as<std::uint64_t>(from + 8 * i) : left == 0 ? 0 : load_under_8(from + 8 * i, left);
  }
  return (Raw)words;
}
TUTTI_INLINE void store_first(unsigned char* to, Raw value, std::size_t n) {
  const V<std::uint64_t> words = (V<std::uint64_t>)value;
  for (std::size_t i = 0; i < kBytes / 8; ++i) {
    const std::size_t left = n > 8 * i ? n - 8 * i : 0;
    if (left >= 8) {
      store_as<std::uint64_t>(to + 8 * i, words[i]);
    } else if (left != 0) {
      store_under_8(to + 8 * i, words[i], left);
    }
  }
}

#endif
