// The words that the whole library shares: element types, reductions and collectives.
// Installed with the public API; the rooms below the API use the same words.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti {

enum class DataType : std::uint8_t { i8, u8, i32, u32, i64, u64, f16, bf16, f32, f64, f8e4m3, f8e5m2 };
inline constexpr int kDataTypes = 12;

/// avg divides the sum by the number of ranks (integers truncate toward zero). premul_sum multiplies each rank's
/// contribution by that rank's own factor, rounds the product to the type, then sums. band, bor and bxor combine the
/// bits of integers.
enum class ReduceOp : std::uint8_t { sum, prod, min, max, avg, premul_sum, band, bor, bxor };
inline constexpr int kReduceOps = 9;

/// The place of a buffer. CUDA's managed memory counts as a device's, its pinned memory as the host's.
enum class Memory : std::uint8_t { host, device };

/// A CUDA stream: a cudaStream_t or CUstream. Null: the legacy default stream. Calls on host memory do not look at it.
using Stream = void*;

/// A receive from this peer takes a message with its tag from any rank (MPI_ANY_SOURCE).
inline constexpr int kAnySource = -1;

enum class Collective : std::uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  reduce,
  all_to_all,
  all_to_allv,
  gather,
  scatter,
  barrier,
  send_recv,
};
inline constexpr int kCollectives = 11;

/// The kind of failure that a call ended with. invalid_argument, unsupported and memory_limit are found before anything
/// is done, and the communicator still works. Any other failure of a collective, a send or a receive ends the
/// communicator: every pending and future call on it fails with the same sentence.
enum class Code : int {
  ok = 0,
  invalid_argument,  // the caller's mistake; nothing was done, the communicator still works
  unsupported,       // asked for something that this build or machine does not have
  mismatch,          // ranks made different calls
  timeout,           // a deadline passed
  peer_died,         // a rank of the communicator is gone
  aborted,           // a rank aborted the communicator
  system,            // the operating system refused something
  memory_limit,      // a cap on memory would be passed
};

constexpr bool reduces(Collective collective) {
  return collective == Collective::all_reduce || collective == Collective::reduce_scatter ||
         collective == Collective::reduce;
}

constexpr bool has_root(Collective collective) {
  return collective == Collective::broadcast || collective == Collective::reduce || collective == Collective::gather ||
         collective == Collective::scatter;
}

constexpr bool is_integer(DataType type) { return type <= DataType::u64; }

constexpr bool is_bitwise(ReduceOp op) { return op == ReduceOp::band || op == ReduceOp::bor || op == ReduceOp::bxor; }

/// Returns whether `op` can reduce elements of this type: bitwise operations take integers only.
constexpr bool applies(ReduceOp op, DataType type) { return is_integer(type) || !is_bitwise(op); }

/// Returns the bytes of one element.
constexpr std::size_t size_of(DataType type) {
  switch (type) {
    case DataType::i8:
    case DataType::u8:
    case DataType::f8e4m3:
    case DataType::f8e5m2: return 1;
    case DataType::f16:
    case DataType::bf16: return 2;
    case DataType::i32:
    case DataType::u32:
    case DataType::f32: return 4;
    case DataType::i64:
    case DataType::u64:
    case DataType::f64: return 8;
  }
  return 0;
}

constexpr const char* name_of(DataType type) {
  constexpr const char* names[kDataTypes] = {"i8",  "u8",   "i32", "u32", "i64",    "u64",
                                             "f16", "bf16", "f32", "f64", "f8e4m3", "f8e5m2"};
  return names[static_cast<int>(type)];
}

constexpr const char* name_of(ReduceOp op) {
  constexpr const char* names[kReduceOps] = {"sum", "prod", "min", "max", "avg", "premul_sum", "band", "bor", "bxor"};
  return names[static_cast<int>(op)];
}

constexpr const char* name_of(Collective collective) {
  constexpr const char* names[kCollectives] = {"all_reduce", "reduce_scatter", "all_gather",  "broadcast",
                                               "reduce",     "all_to_all",     "all_to_allv", "gather",
                                               "scatter",    "barrier",        "send_recv"};
  return names[static_cast<int>(collective)];
}

}  // namespace tutti
