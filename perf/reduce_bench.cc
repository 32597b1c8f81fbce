// Reductions compared with loops that a programmer would write by hand, in one run: bytes per second of each.
//
// The yardstick is `plain`: c[i] = a[i] + b[i], auto-vectorised by the compiler for the same instruction set. Bytes are
// those read and written (3 per element byte for two sources and one destination).
// Sizes are bytes of one buffer: 16 KiB (L1 holds two of three), 512 KiB (L2), 64 MiB (memory).
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "collectives/reduce/body.h"

namespace {

using tutti::DataType;
using tutti::ReduceOp;
using tutti::reduce::Body;
using tutti::reduce::Spec;

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

/// `n` buffers of `bytes`, 4 KiB + 256 B apart in their offsets from a page, so that they do not fight for cache sets.
class Buffers {
 public:
  Buffers(std::size_t n, std::size_t bytes) {
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t room = (bytes + 64 * 1024 + 4095) / 4096 * 4096;
      memory_.emplace_back(std::aligned_alloc(4096, room));
      std::memset(memory_.back().get(), 0, room);
      pointers_.push_back(static_cast<char*>(memory_.back().get()) + i % 8 * (4096 + 256));
    }
  }
  void* at(std::size_t i) const { return pointers_[i]; }

 private:
  std::vector<std::unique_ptr<void, Free>> memory_;
  std::vector<void*> pointers_;
};

using PlainLoop = void (*)(float* c, const float* a, const float* b, std::size_t n);

#define TUTTI_PLAIN_LOOP(name, attributes)                                                                         \
  attributes void name(float* __restrict c, const float* __restrict a, const float* __restrict b, std::size_t n) { \
    for (std::size_t i = 0; i < n; ++i) c[i] = a[i] + b[i];                                                        \
  }
#if defined(__x86_64__) && !defined(__clang__)
TUTTI_PLAIN_LOOP(plain_avx512, __attribute__((noinline, target("avx512f,prefer-vector-width=512"), optimize("O3"))))
TUTTI_PLAIN_LOOP(plain_avx2, __attribute__((noinline, target("avx2"), optimize("O3"))))
#endif
TUTTI_PLAIN_LOOP(plain_generic, __attribute__((noinline)))

PlainLoop plain_loop(const std::string& isa) {
#if defined(__x86_64__) && !defined(__clang__)
  if (isa == "avx512") return plain_avx512;
  if (isa == "avx2") return plain_avx2;
#endif
  return plain_generic;
}

void set_rate(benchmark::State& state, std::size_t bytes_per_call) {
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * bytes_per_call));
}

void plain(benchmark::State& state, PlainLoop loop, std::size_t bytes) {
  const Buffers buffers(3, bytes);
  for (auto _ : state) {
    loop(static_cast<float*>(buffers.at(2)), static_cast<float*>(buffers.at(0)), static_cast<float*>(buffers.at(1)),
         bytes / sizeof(float));
    benchmark::ClobberMemory();
  }
  set_rate(state, 3 * bytes);
}

void reduced(benchmark::State& state, const Body* body, DataType type, ReduceOp op, std::size_t n_srcs,
             std::size_t n_dsts, std::size_t bytes, bool streaming) {
  const Buffers buffers(n_srcs + n_dsts, bytes);
  std::vector<const void*> srcs;
  std::vector<void*> dsts;
  for (std::size_t i = 0; i < n_srcs; ++i) srcs.push_back(buffers.at(i));
  for (std::size_t i = 0; i < n_dsts; ++i) dsts.push_back(buffers.at(n_srcs + i));
  const std::vector<double> factors(n_srcs, 0.5);
  const Spec spec{type, op, 2, factors.data()};
  const std::size_t count = bytes / tutti::size_of(type);
  for (auto _ : state) {
    tutti::reduce::reduce_with(*body, spec, dsts, srcs, count, streaming);
    benchmark::ClobberMemory();
  }
  set_rate(state, (n_srcs + n_dsts) * bytes);
}

void copied(benchmark::State& state, const Body* body, std::size_t n_dsts, std::size_t bytes, bool streaming) {
  const Buffers buffers(1 + n_dsts, bytes);
  std::vector<void*> dsts;
  for (std::size_t i = 0; i < n_dsts; ++i) dsts.push_back(buffers.at(1 + i));
  for (auto _ : state) {
    tutti::reduce::copy_with(*body, dsts, buffers.at(0), bytes, streaming);
    benchmark::ClobberMemory();
  }
  set_rate(state, (1 + n_dsts) * bytes);
}

std::string size_name(std::size_t bytes) {
  if (bytes >= 1024 * 1024) return std::to_string(bytes >> 20) + "M";
  return bytes >= 1024 ? std::to_string(bytes >> 10) + "K" : std::to_string(bytes);
}

void add_reduce(const Body* body, DataType type, ReduceOp op, std::size_t n_srcs, std::size_t n_dsts, std::size_t bytes,
                bool streaming = false) {
  const std::string name = std::string(body->isa) + "/" + name_of(type) + "/" + name_of(op) + "/" +
                           std::to_string(n_srcs) + "to" + std::to_string(n_dsts) + "/" + size_name(bytes) +
                           (streaming ? "/streaming" : "");
  benchmark::RegisterBenchmark(name.c_str(), reduced, body, type, op, n_srcs, n_dsts, bytes, streaming);
}

void add_all(const Body* body) {
  constexpr std::size_t kSizes[] = {16 << 10, 512 << 10, 64 << 20};
  for (const std::size_t bytes : kSizes) {
    const std::string plain_name = std::string(body->isa) + "/f32/plain/2to1/" + size_name(bytes);
    benchmark::RegisterBenchmark(plain_name.c_str(), plain, plain_loop(body->isa), bytes);
    for (const DataType type : {DataType::f32, DataType::bf16, DataType::f16}) {
      add_reduce(body, type, ReduceOp::sum, 2, 1, bytes);
      add_reduce(body, type, ReduceOp::sum, 2, 2, bytes);
      add_reduce(body, type, ReduceOp::sum, 4, 4, bytes);
    }
    add_reduce(body, DataType::f32, ReduceOp::sum, 16, 1, bytes);
    for (const DataType type : {DataType::f8e4m3, DataType::f8e5m2, DataType::f64, DataType::i8, DataType::i64}) {
      add_reduce(body, type, ReduceOp::sum, 2, 1, bytes);
    }
    for (const ReduceOp op : {ReduceOp::prod, ReduceOp::min, ReduceOp::avg, ReduceOp::premul_sum}) {
      add_reduce(body, DataType::f32, op, 2, 1, bytes);
      add_reduce(body, DataType::bf16, op, 2, 1, bytes);
    }
    add_reduce(body, DataType::i32, ReduceOp::avg, 2, 1, bytes);
  }
  add_reduce(body, DataType::f32, ReduceOp::sum, 2, 1, 64 << 20, true);
  add_reduce(body, DataType::f32, ReduceOp::sum, 2, 2, 64 << 20, true);
  add_reduce(body, DataType::bf16, ReduceOp::sum, 2, 1, 64 << 20, true);
  for (const std::size_t bytes : {8, 12, 64, 100, 512}) {
    add_reduce(body, DataType::f32, ReduceOp::sum, 2, 1, bytes);
    add_reduce(body, DataType::f32, ReduceOp::sum, 2, 2, bytes);
    add_reduce(body, DataType::bf16, ReduceOp::sum, 2, 1, bytes);
  }
  for (const bool streaming : {false, true}) {
    for (const std::size_t n_dsts : {1, 2}) {
      const std::string name =
          std::string(body->isa) + "/copy/1to" + std::to_string(n_dsts) + "/64M" + (streaming ? "/streaming" : "");
      benchmark::RegisterBenchmark(name.c_str(), copied, body, n_dsts, std::size_t{64} << 20, streaming);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  for (const char* isa : {"avx512", "avx2", "generic"}) {
    if (const Body* body = tutti::reduce::body(isa)) add_all(body);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
