// The data half of a walker: sources to destinations, sixteen bytes at a time, copied or reduced. Semantics are those
// of collectives/reduce/reduce.h, to the bit. Everything is a template over a Block: the threads of a thread block on
// the device (device_block-inl.h), one thread that plays all of them on a host (host_block.h).
//
// Included where these are defined: what functions begin with. TUTTI_BOTH and TUTTI_MEMBER, static and not; TUTTI_SLOW
// and TUTTI_SLOW_FREE, the same for what need not be fast, so that it is in the code once.
// Multiplications and additions must not be contracted (nvcc -fmad=false, gcc -ffp-contract=off).
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tutti/types.hpp"

namespace tutti::executor::cuda {

#include "collectives/executor/cuda/codec-inl.h"

/// How a range is read and written.
enum class Form : std::uint8_t { bytes, halves, words, pairs, quads, flagged };  // units of 1, 2, 4, 8, 16 bytes; lines

struct Entry {
  std::uint64_t address = 0;
  double factor = 1.0;
  Form form = Form::quads;
  std::uint8_t peer = 0;  // flagged: whose lines they are
};

/// One pass over memory, as a block's threads share it. Destinations come behind the sources.
struct Pass {
  static constexpr int kMostEntries = 132;
  std::uint64_t bytes = 0;
  double divide_by = 0;
  std::uint32_t sources = 0;
  std::uint32_t destinations = 0;
  std::uint32_t flag = 0;  // of flagged lines
  Entry entries[kMostEntries];
};

TUTTI_BOTH Form form_of(std::uint64_t address) {
  return address % 16 == 0  ? Form::quads
         : address % 8 == 0 ? Form::pairs
         : address % 4 == 0 ? Form::words
         : address % 2 == 0 ? Form::halves
                            : Form::bytes;
}

template <class T>
TUTTI_BOTH void load_units(Raw& raw, std::uint64_t address) {
  T units[16 / sizeof(T)];
  for (std::size_t i = 0; i < 16 / sizeof(T); ++i) units[i] = reinterpret_cast<const T*>(address)[i];
  memcpy(&raw, units, 16);
}

template <class T>
TUTTI_BOTH void store_units(std::uint64_t address, const Raw& raw) {
  T units[16 / sizeof(T)];
  memcpy(units, &raw, 16);
  for (std::size_t i = 0; i < 16 / sizeof(T); ++i) reinterpret_cast<T*>(address)[i] = units[i];
}

// Lines whose flag has not come are waited for; `well` becomes false when that ends badly.
template <class Block>
TUTTI_BOTH Raw load_any(Block& block, const Entry& entry, std::uint32_t flag, std::uint64_t index, bool& well) {
  Raw raw = {};
  const std::uint64_t address = entry.address + 16 * index;
  switch (entry.form) {
    case Form::quads: raw = *reinterpret_cast<const Raw*>(address); break;
    case Form::pairs: load_units<std::uint64_t>(raw, address); break;
    case Form::words: load_units<std::uint32_t>(raw, address); break;
    case Form::halves: load_units<std::uint16_t>(raw, address); break;
    case Form::bytes: load_units<std::uint8_t>(raw, address); break;
    case Form::flagged: {
      const std::uint64_t lines = entry.address + 32 * index;
      for (int line = 0; line < 2; ++line) {
        std::uint64_t low = 0;
        std::uint64_t high = 0;
        const auto come = [&] {
          block.load_line(lines + 16 * static_cast<unsigned>(line), low, high);
          return low >> 32 == flag && high >> 32 == flag;
        };
        if (!come() && well) well = block.await_line(come, entry.peer);
        raw.words[2 * line] = static_cast<std::uint32_t>(low);
        raw.words[2 * line + 1] = static_cast<std::uint32_t>(high);
      }
      break;
    }
  }
  return raw;
}

template <class Block>
TUTTI_BOTH void store_any(Block& block, const Entry& entry, std::uint32_t flag, std::uint64_t index, const Raw& raw) {
  const std::uint64_t address = entry.address + 16 * index;
  switch (entry.form) {
    case Form::quads: *reinterpret_cast<Raw*>(address) = raw; break;
    case Form::pairs: store_units<std::uint64_t>(address, raw); break;
    case Form::words: store_units<std::uint32_t>(address, raw); break;
    case Form::halves: store_units<std::uint16_t>(address, raw); break;
    case Form::bytes: store_units<std::uint8_t>(address, raw); break;
    case Form::flagged: {
      const std::uint64_t lines = entry.address + 32 * index;
      const std::uint64_t above = std::uint64_t{flag} << 32;
      block.store_line(lines, above | raw.words[0], above | raw.words[1]);
      block.store_line(lines + 16, above | raw.words[2], above | raw.words[3]);
      break;
    }
  }
}

/// The first `bytes` (16: all) of a vector; nothing beyond them is touched, but for flagged lines, which are whole.
template <class Block>
TUTTI_SLOW_FREE Raw load_first(Block& block, const Entry& entry, std::uint32_t flag, std::uint64_t index,
                               std::uint32_t bytes, bool& well) {
  if (bytes == 16 || entry.form == Form::flagged) return load_any(block, entry, flag, index, well);
  Raw raw = {};
  const auto* from = reinterpret_cast<const std::uint8_t*>(entry.address + 16 * index);
  for (std::uint32_t i = 0; i < bytes; ++i) raw.words[i / 4] |= std::uint32_t{from[i]} << (i % 4 * 8);
  return raw;
}

template <class Block>
TUTTI_SLOW_FREE void store_first(Block& block, const Entry& entry, std::uint32_t flag, std::uint64_t index,
                                 std::uint32_t bytes, const Raw& raw) {
  if (bytes == 16 || entry.form == Form::flagged) return store_any(block, entry, flag, index, raw);
  auto* to = reinterpret_cast<std::uint8_t*>(entry.address + 16 * index);
  for (std::uint32_t i = 0; i < bytes; ++i) to[i] = static_cast<std::uint8_t>(raw.words[i / 4] >> (i % 4 * 8));
}

// ---- Operations on widened elements

template <class T>
inline constexpr bool kIsFloat = T(1) / T(2) != T(0);

struct Sum {
  template <class T>
  TUTTI_BOTH T apply(T a, T b) {
    if constexpr (kIsFloat<T>) {
      return a + b;
    } else {
      return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
    }
  }
};

struct Prod {
  template <class T>
  TUTTI_BOTH T apply(T a, T b) {
    if constexpr (kIsFloat<T>) {
      return a * b;
    } else {
      return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
    }
  }
};

/// NaN when either is; -0 < +0.
template <bool kSmaller>
struct Extreme {
  template <class T>
  TUTTI_BOTH T apply(T a, T b) {
    if constexpr (kIsFloat<T>) {
      if (a != a) return a;
      if (b != b) return b;
      if (a == b) {
        const bool a_negative = sizeof(T) == 4 ? bits_of(static_cast<float>(a)) >> 31 != 0 : T(1) / a < T(0);
        return a != T(0) || a_negative == kSmaller ? a : b;
      }
    }
    return (a < b) == kSmaller ? a : b;
  }
};

template <ReduceOp kOp>
struct Bits {
  template <class T>
  TUTTI_BOTH T apply(T a, T b) {
    if constexpr (kIsFloat<T>) {
      return a;  // never asked for
    } else {
      return kOp == ReduceOp::band  ? static_cast<T>(a & b)
             : kOp == ReduceOp::bor ? static_cast<T>(a | b)
                                    : static_cast<T>(a ^ b);
    }
  }
};

template <class T>
TUTTI_BOTH T divided(T sum, double by) {
  if constexpr (kIsFloat<T>) {
    return sum / static_cast<T>(by);
  } else {
    // Up to 32 bits the double's quotient never rounds up to a whole number that the true one lies below (body-inl.h).
    using Quotient = std::conditional_t<sizeof(T) == 8, T, double>;
    return static_cast<T>(static_cast<Quotient>(sum) / static_cast<Quotient>(by));
  }
}

/// The factor in the accumulator's type; for integers truncated and clamped, NaN becomes 0.
template <class T>
TUTTI_BOTH T factor_as(double factor) {
  if constexpr (kIsFloat<T>) {
    return static_cast<T>(factor);
  } else {
    constexpr bool kSigned = T(-1) < T(0);
    constexpr int kDigits = 8 * static_cast<int>(sizeof(T)) - (kSigned ? 1 : 0);
    constexpr T kMax = static_cast<T>(~std::uint64_t{0} >> (64 - kDigits));
    constexpr double kEnd = 2.0 * static_cast<double>(std::uint64_t{1} << (kDigits - 1));  // one past the largest
    if (factor != factor) return 0;
    if (factor >= kEnd) return kMax;
    if (factor <= (kSigned ? -kEnd : 0.0)) return kSigned ? static_cast<T>(-kMax - 1) : T{0};
    return static_cast<T>(factor);
  }
}

// ---- The loops

struct Copy {};  // in place of an operation: bytes as they are

template <class Codec, class Op, bool kPremultiply, class Block>
struct Loop {
  using Wide = typename Codec::Wide;
  static constexpr int kCount = Codec::kCount;
  static constexpr bool kCopies = std::is_same_v<Op, Copy>;
  /// Vectors that a thread has in flight: four, and two where their elements would fill the registers.
  static constexpr int kUnroll = kCount >= 16 && !kCopies ? 2 : 4;

  struct Elements {
    Wide v[kCount];
  };

  TUTTI_BOTH void take(Elements& into, const Raw& raw, double factor, bool first) {
    Wide x[kCount];
    Codec::decode(raw, x);
    if constexpr (kPremultiply) {
      const Wide by = factor_as<Wide>(factor);
      for (int i = 0; i < kCount; ++i) x[i] = Prod::apply<Wide>(x[i], by);
      if constexpr (Codec::kNarrow) {
        const Raw rounded = Codec::encode(x);
        Codec::decode(rounded, x);
      }
    }
    for (int i = 0; i < kCount; ++i) into.v[i] = first ? x[i] : Op::template apply<Wide>(into.v[i], x[i]);
  }

  TUTTI_BOTH Raw finish(Elements& x, double divide_by) {
    if (divide_by != 0) {
      for (int i = 0; i < kCount; ++i) x.v[i] = divided<Wide>(x.v[i], divide_by);
    }
    return Codec::encode(x.v);
  }

  /// kUnroll vectors, `stride` apart, of ranges that are all aligned. All sources are read before anything is written.
  TUTTI_BOTH void quads(const Pass& pass, std::uint64_t index, std::uint64_t stride) {
    Raw raw[kUnroll];
    const auto load = [&](std::uint32_t entry) {
      const auto* from = reinterpret_cast<const Raw*>(pass.entries[entry].address);
      for (int u = 0; u < kUnroll; ++u) raw[u] = from[index + u * stride];
    };
    load(0);
    if constexpr (!kCopies) {
      Elements sum[kUnroll];
      for (int u = 0; u < kUnroll; ++u) take(sum[u], raw[u], pass.entries[0].factor, true);
      for (std::uint32_t s = 1; s < pass.sources; ++s) {
        load(s);
        for (int u = 0; u < kUnroll; ++u) take(sum[u], raw[u], pass.entries[s].factor, false);
      }
      for (int u = 0; u < kUnroll; ++u) raw[u] = finish(sum[u], pass.divide_by);
    }
    for (std::uint32_t d = pass.sources; d < pass.sources + pass.destinations; ++d) {
      const std::uint64_t address = pass.entries[d].address;
      if (kCopies && address == pass.entries[0].address) continue;  // onto itself
      for (int u = 0; u < kUnroll; ++u) reinterpret_cast<Raw*>(address)[index + u * stride] = raw[u];
    }
  }

  /// One vector, or the first bytes of one, in any form.
  TUTTI_BOTH void any(Block& block, const Pass& pass, std::uint64_t index, std::uint32_t bytes, bool& well) {
    Raw raw = load_first(block, pass.entries[0], pass.flag, index, bytes, well);
    if constexpr (!kCopies) {
      Elements sum;
      take(sum, raw, pass.entries[0].factor, true);
      for (std::uint32_t s = 1; s < pass.sources; ++s) {
        raw = load_first(block, pass.entries[s], pass.flag, index, bytes, well);
        take(sum, raw, pass.entries[s].factor, false);
      }
      raw = finish(sum, pass.divide_by);
    }
    for (std::uint32_t d = 0; d < pass.destinations; ++d) {
      const Entry& entry = pass.entries[pass.sources + d];
      if (kCopies && entry.address == pass.entries[0].address) continue;
      store_first(block, entry, pass.flag, index, bytes, raw);
    }
  }

  /// False when a line did not come.
  TUTTI_BOTH bool run(Block& block, const Pass& pass) {
    const std::uint64_t stride = block.threads();
    const std::uint64_t full = pass.bytes / 16;
    bool well = true;
    bool aligned = true;
    for (std::uint32_t i = 0; i < pass.sources + pass.destinations; ++i) aligned &= pass.entries[i].form == Form::quads;
    std::uint64_t index = block.thread();
    if (aligned) {
      for (; index + (kUnroll - 1) * stride < full; index += kUnroll * stride) quads(pass, index, stride);
    }
    const std::uint64_t all = (pass.bytes + 15) / 16;
    for (; index < all; index += stride) {
      any(block, pass, index, index < full ? 16 : static_cast<std::uint32_t>(pass.bytes % 16), well);
    }
    return well;
  }
};

template <class Block>
TUTTI_BOTH bool copy_pass(Block& block, const Pass& pass) {
  return Loop<Plain<std::uint32_t>, Copy, false, Block>::run(block, pass);
}

/// Bits have no neighbours, so band, bor and bxor of every type are those of u32.
template <DataType kType, class Block>
TUTTI_BOTH bool reduce_pass(Block& block, ReduceOp op, const Pass& pass) {
  using Codec = typename CodecOf<kType>::type;
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg: return Loop<Codec, Sum, false, Block>::run(block, pass);
    case ReduceOp::prod: return Loop<Codec, Prod, false, Block>::run(block, pass);
    case ReduceOp::min: return Loop<Codec, Extreme<true>, false, Block>::run(block, pass);
    case ReduceOp::max: return Loop<Codec, Extreme<false>, false, Block>::run(block, pass);
    case ReduceOp::premul_sum: return Loop<Codec, Sum, true, Block>::run(block, pass);
    case ReduceOp::band:
      if constexpr (kType == DataType::u32) return Loop<Codec, Bits<ReduceOp::band>, false, Block>::run(block, pass);
      break;
    case ReduceOp::bor:
      if constexpr (kType == DataType::u32) return Loop<Codec, Bits<ReduceOp::bor>, false, Block>::run(block, pass);
      break;
    case ReduceOp::bxor:
      if constexpr (kType == DataType::u32) return Loop<Codec, Bits<ReduceOp::bxor>, false, Block>::run(block, pass);
      break;
  }
  return false;  // the launcher chooses the kernel by type and operation
}

}  // namespace tutti::executor::cuda
