#include "collectives/reduce/reduce.h"

#include <cstring>

#include "base/check.h"
#include "collectives/reduce/body.h"

#if defined(TUTTI_REDUCE_X86)
#include <cpuid.h>
#endif

namespace tutti::reduce {
namespace {

#if defined(TUTTI_REDUCE_X86)
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
// __builtin_cpu_supports also asks whether the system saves the wide registers.
bool has_avx2() { return __builtin_cpu_supports("avx2") && has_f16c(); }
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

const Body& best() {
  for (const char* isa : {"avx512", "avx2"}) {
    if (const Body* found = body(isa)) return *found;
  }
  return kBodyGeneric;
}

const Body& chosen() {
  static const Body& body = best();
  return body;
}

// Half of a small L1 cache: a block is still there when the second destination is written.
constexpr std::size_t kCopyBlock = 16 * 1024;

}  // namespace

const Body* body(const char* isa) {
  if (std::strcmp(isa, "generic") == 0) return &kBodyGeneric;
#if defined(TUTTI_REDUCE_X86)
  if (std::strcmp(isa, "avx2") == 0 && has_avx2()) return &kBodyAvx2;
  if (std::strcmp(isa, "avx512") == 0 && has_avx512()) return &kBodyAvx512;
#endif
  return nullptr;
}

void reduce_with(const Body& body, const Spec& spec, std::span<void* const> dsts, std::span<const void* const> srcs,
                 std::size_t count, bool streaming) {
  TUTTI_CHECK(!dsts.empty() && !srcs.empty() && applies(spec.op, spec.type));
  if (count == 0) return;
  ReduceOp op = spec.op;
  if ((op == ReduceOp::avg && spec.divide_by == 0) || (op == ReduceOp::premul_sum && spec.factors == nullptr)) {
    op = ReduceOp::sum;
  }
  const Job job{dsts.data(),    srcs.data(),  dsts.size(), srcs.size(), count * size_of(spec.type),
                spec.divide_by, spec.factors, streaming};
  body.kernels[static_cast<int>(spec.type)][static_cast<int>(op)](job);
}

void copy_with(const Body& body, std::span<void* const> dsts, const void* src, std::size_t bytes, bool streaming) {
  const std::size_t block = dsts.size() == 1 ? bytes : kCopyBlock;
  for (std::size_t offset = 0; offset < bytes; offset += block) {
    const std::size_t n = bytes - offset < block ? bytes - offset : block;
    const char* from = static_cast<const char*>(src) + offset;
    for (void* dst : dsts) {
      if (dst == src) continue;
      char* to = static_cast<char*>(dst) + offset;
      if (streaming) {
        body.stream_copy(to, from, n);
      } else {
        std::memcpy(to, from, n);
      }
    }
  }
  if (streaming) body.fence();
}

void reduce(const Spec& spec, std::span<void* const> dsts, std::span<const void* const> srcs, std::size_t count,
            bool streaming) {
  reduce_with(chosen(), spec, dsts, srcs, count, streaming);
}

void copy(std::span<void* const> dsts, const void* src, std::size_t bytes, bool streaming) {
  copy_with(chosen(), dsts, src, bytes, streaming);
}

const char* isa() { return chosen().isa; }

}  // namespace tutti::reduce
