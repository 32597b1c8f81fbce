// The loops of all types and operations, for the instruction set of the including file (body_generic.cc, ...).
//
// Everything is in an anonymous namespace and nothing from the standard library has code: a function with a name that
// other files share might be the copy that the linker keeps, with instructions that the machine does not have.
#include <cstddef>
#include <cstdint>
#include <type_traits>

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "collectives/reduce/body_table.h"

namespace tutti::reduce {
namespace {

#include "collectives/reduce/vector-inl.h"
// In this order: the codecs are made of vectors.
#include "collectives/reduce/codec-inl.h"

// ---- Operations on widened vectors

/// Wraps for integers of either sign (signed overflow is undefined, unsigned is not).
template <class T, bool = std::is_integral_v<T>>
struct Wrapping {
  using type = std::make_unsigned_t<T>;
};
template <class T>
struct Wrapping<T, false> {
  using type = T;
};
template <class T>
using W = V<typename Wrapping<T>::type>;

struct Sum {
  template <class T>
  TUTTI_INLINE V<T> apply(V<T> a, V<T> b) {
    return (V<T>)((W<T>)a + (W<T>)b);
  }
};

struct Prod {
  template <class T>
  TUTTI_INLINE V<T> apply(V<T> a, V<T> b) {
    return (V<T>)((W<T>)a * (W<T>)b);
  }
};

/// kSmaller: min, else max. A NaN on either side stays; equal floats differ at most in the sign of zero, which an or
/// (min) or an and (max) of the bits decides.
template <bool kSmaller>
struct Extreme {
  template <class T>
  TUTTI_INLINE V<T> apply(V<T> a, V<T> b) {
    const auto a_wins = kSmaller ? a < b : a > b;
    if constexpr (std::is_integral_v<T>) {
      return a_wins ? a : b;
    } else {
      using Bits = decltype(a < b);
      const Bits either = kSmaller ? (Bits)a | (Bits)b : (Bits)a & (Bits)b;
      const Bits chosen = (a_wins | (a != a)) ? (Bits)a : (Bits)b;
      return (V<T>)(a == b ? either : chosen);
    }
  }
};

struct And {
  template <class T>
  TUTTI_INLINE V<T> apply(V<T> a, V<T> b) {
    return a & b;
  }
};

struct Or {
  template <class T>
  TUTTI_INLINE V<T> apply(V<T> a, V<T> b) {
    return a | b;
  }
};

struct Xor {
  template <class T>
  TUTTI_INLINE V<T> apply(V<T> a, V<T> b) {
    return a ^ b;
  }
};

// ---- What else is done to the elements

/// The sum divided by the number of ranks.
template <class T>
TUTTI_INLINE V<T> divided(V<T> sum, double by) {
  if constexpr (std::is_floating_point_v<T>) {
    return sum / static_cast<T>(by);
  } else {
    // Up to 32 bits the double's quotient never rounds up to a whole number that the true quotient lies below: they
    // differ by at least 1/by, more than 2^-52 of the quotient. So truncating it is the integer division.
    using Quotient = std::conditional_t<sizeof(T) == 8, T, double>;
    T lanes[kBytes / sizeof(T)];
    __builtin_memcpy(lanes, &sum, kBytes);
    for (T& lane : lanes) lane = static_cast<T>(static_cast<Quotient>(lane) / static_cast<Quotient>(by));
    __builtin_memcpy(&sum, lanes, kBytes);
    return sum;
  }
}

/// The factor in the accumulator's type; for integers truncated and clamped, NaN becomes 0.
template <class T>
TUTTI_INLINE T factor_as(double factor) {
  if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(factor);
  } else {
    constexpr int kDigits = 8 * sizeof(T) - (std::is_signed_v<T> ? 1 : 0);
    constexpr T kMax = static_cast<T>(~std::uint64_t{0} >> (64 - kDigits));
    constexpr double kEnd = 2.0 * static_cast<double>(std::uint64_t{1} << (kDigits - 1));  // one past the largest
    if (factor != factor) return 0;
    if (factor >= kEnd) return kMax;
    if (factor <= (std::is_signed_v<T> ? -kEnd : 0.0)) return std::is_signed_v<T> ? static_cast<T>(-kMax - 1) : T{0};
    return static_cast<T>(factor);
  }
}

enum class Extra { none, divide, premultiply };

// ---- The loops

template <class Codec, class Op, Extra kExtra>
struct Loop {
  using Wide = typename Codec::Wide;
  static constexpr int kParts = Codec::kParts;
  using Elements = Parts<Wide, kParts>;
  // Vectors per iteration: enough independent work to hide latencies, few enough to stay in 16 registers.
  static constexpr int kUnroll = kParts == 1 ? 4 : kParts == 2 ? 2 : 1;

  TUTTI_INLINE Elements read(Raw raw, const Job& job, std::size_t source) {
    Elements x = Codec::decode(raw);
    if constexpr (kExtra == Extra::premultiply) {
      const V<Wide> factor = factor_as<Wide>(job.factors[source]) - V<Wide>{};  // in every lane; plus 0 would lose -0
      for (int k = 0; k < kParts; ++k) x.part[k] = Prod::apply<Wide>(x.part[k], factor);
      if constexpr (Codec::kNarrow) x = Codec::decode(Codec::encode(x));
    }
    return x;
  }

  TUTTI_INLINE void combine(Elements& into, Elements x) {
    for (int k = 0; k < kParts; ++k) into.part[k] = Op::template apply<Wide>(into.part[k], x.part[k]);
  }

  TUTTI_INLINE Raw finish(Elements x, const Job& job) {
    if constexpr (kExtra == Extra::divide) {
      for (int k = 0; k < kParts; ++k) x.part[k] = divided<Wide>(x.part[k], job.divide_by);
    }
    return Codec::encode(x);
  }

  /// kCount vectors at `offset`. All sources are read before anything is written, so a source may be a destination.
  template <int kCount>
  TUTTI_INLINE void vectors(const Job& job, std::size_t n_srcs, std::size_t n_dsts, std::size_t offset,
                            bool past_cache) {
    Elements sum[kCount];
    const unsigned char* first = static_cast<const unsigned char*>(job.srcs[0]) + offset;
    for (int i = 0; i < kCount; ++i) sum[i] = read(load(first + i * kBytes), job, 0);
    for (std::size_t s = 1; s < n_srcs; ++s) {
      const unsigned char* from = static_cast<const unsigned char*>(job.srcs[s]) + offset;
      for (int i = 0; i < kCount; ++i) combine(sum[i], read(load(from + i * kBytes), job, s));
    }
    Raw result[kCount];
    for (int i = 0; i < kCount; ++i) result[i] = finish(sum[i], job);
    for (std::size_t d = 0; d < n_dsts; ++d) {
      unsigned char* to = static_cast<unsigned char*>(job.dsts[d]) + offset;
      if (past_cache) {
        for (int i = 0; i < kCount; ++i) stream(to + i * kBytes, result[i]);
      } else {
        for (int i = 0; i < kCount; ++i) store(to + i * kBytes, result[i]);
      }
    }
  }

  /// `n` < kBytes bytes at `offset`. One copy for all callers: it is most of the code of a kernel.
  [[gnu::noinline]] static void partial(const Job& job, std::size_t n_srcs, std::size_t n_dsts, std::size_t offset,
                                        std::size_t n) {
    Elements sum = read(load_first(static_cast<const unsigned char*>(job.srcs[0]) + offset, n), job, 0);
    for (std::size_t s = 1; s < n_srcs; ++s) {
      combine(sum, read(load_first(static_cast<const unsigned char*>(job.srcs[s]) + offset, n), job, s));
    }
    const Raw result = finish(sum, job);
    for (std::size_t d = 0; d < n_dsts; ++d) {
      store_first(static_cast<unsigned char*>(job.dsts[d]) + offset, result, n);
    }
  }

  TUTTI_INLINE void run(const Job& job, std::size_t n_srcs, std::size_t n_dsts, std::size_t offset, bool past_cache) {
    for (; offset + kUnroll * kBytes <= job.bytes; offset += kUnroll * kBytes) {
      vectors<kUnroll>(job, n_srcs, n_dsts, offset, past_cache);
    }
    for (; kUnroll > 1 && offset + kBytes <= job.bytes; offset += kBytes) {
      vectors<1>(job, n_srcs, n_dsts, offset, past_cache);
    }
    if (offset < job.bytes) partial(job, n_srcs, n_dsts, offset, job.bytes - offset);
  }
};

/// Bytes before the destinations' first multiple of kBytes, or kBytes if there is no such place for all of them.
TUTTI_INLINE std::size_t unaligned_head(const Job& job, std::size_t element) {
  const std::size_t head = -reinterpret_cast<std::uintptr_t>(job.dsts[0]) % kBytes;
  if (head % element != 0) return kBytes;
  for (std::size_t d = 1; d < job.n_dsts; ++d) {
    if (-reinterpret_cast<std::uintptr_t>(job.dsts[d]) % kBytes != head) return kBytes;
  }
  return head;
}

/// The sums of two sources into one or two destinations have loops of their own: they are what a direct all-reduce of
/// two ranks and every step of a ring do.
template <class Codec, class Op, Extra kExtra>
void kernel(const Job& job) {
  using L = Loop<Codec, Op, kExtra>;
  std::size_t head = 0;
  bool past_cache = false;
  if (job.streaming) {
    head = unaligned_head(job, Codec::kSize);
    past_cache = head < kBytes && head < job.bytes;
    head = past_cache ? head : 0;
    if (head > 0) L::partial(job, job.n_srcs, job.n_dsts, 0, head);
  }
  if constexpr (std::is_same_v<Op, Sum> && kExtra == Extra::none) {
    if (job.n_srcs == 2 && job.n_dsts <= 2 && !past_cache) {
      return job.n_dsts == 1 ? L::run(job, 2, 1, 0, false) : L::run(job, 2, 2, 0, false);
    }
  }
  L::run(job, job.n_srcs, job.n_dsts, head, past_cache);
  if (past_cache) stream_fence();
}

void stream_bytes(void* dst, const void* src, std::size_t bytes) {
  auto* to = static_cast<unsigned char*>(dst);
  const auto* from = static_cast<const unsigned char*>(src);
  const std::size_t to_boundary = -reinterpret_cast<std::uintptr_t>(to) % kBytes;
  std::size_t offset = to_boundary < bytes ? to_boundary : bytes;
  if (offset > 0) store_first(to, load_first(from, offset), offset);
  for (; offset + 4 * kBytes <= bytes; offset += 4 * kBytes) {
    Raw value[4];
    for (std::size_t i = 0; i < 4; ++i) value[i] = load(from + offset + i * kBytes);
    for (std::size_t i = 0; i < 4; ++i) stream(to + offset + i * kBytes, value[i]);
  }
  for (; offset + kBytes <= bytes; offset += kBytes) stream(to + offset, load(from + offset));
  if (offset < bytes) store_first(to + offset, load_first(from + offset, bytes - offset), bytes - offset);
}

void fence_streams() { stream_fence(); }

// Sums, products and their bits are the same for both signs of an integer, so the types share those kernels.
#define TUTTI_ARITHMETIC(Codec, Unsigned)                                                                             \
  kernel<Unsigned, Sum, Extra::none>, kernel<Unsigned, Prod, Extra::none>, kernel<Codec, Extreme<true>, Extra::none>, \
      kernel<Codec, Extreme<false>, Extra::none>, kernel<Codec, Sum, Extra::divide>,                                  \
      kernel<Codec, Sum, Extra::premultiply>

// Bits have no neighbours, so integers of any width share the kernels of bytes.
#define TUTTI_INTEGER(Type)                                                                                    \
  {                                                                                                            \
    TUTTI_ARITHMETIC(Plain<Type>, Plain<Wrapping<Type>::type>), kernel<Plain<std::uint8_t>, And, Extra::none>, \
        kernel<Plain<std::uint8_t>, Or, Extra::none>, kernel<Plain<std::uint8_t>, Xor, Extra::none>            \
  }
#define TUTTI_FLOAT(Codec) \
  { TUTTI_ARITHMETIC(Codec, Codec), nullptr, nullptr, nullptr }

}  // namespace

extern const Body TUTTI_REDUCE_BODY = {
    TUTTI_REDUCE_ISA,
    {TUTTI_INTEGER(std::int8_t), TUTTI_INTEGER(std::uint8_t), TUTTI_INTEGER(std::int32_t), TUTTI_INTEGER(std::uint32_t),
     TUTTI_INTEGER(std::int64_t), TUTTI_INTEGER(std::uint64_t), TUTTI_FLOAT(F16), TUTTI_FLOAT(Bf16),
     TUTTI_FLOAT(Floating<float>), TUTTI_FLOAT(Floating<double>), TUTTI_FLOAT(F8e4m3), TUTTI_FLOAT(F8e5m2)},
    stream_bytes,
    fence_streams};

}  // namespace tutti::reduce
