// The data that the benchmarks send, and what must come back: exact for every type, operation and number of ranks,
// whatever the order of the reduction and however often partial results are rounded to the type. So the tolerance is 0.
//
// Why exact. Let L be the largest number up to which every integer is a value of the type (2^24 for f32, 8 for f8e5m2,
// 127 for i8). Per element:
//   sum   integers whose magnitudes add up to at most L over all ranks. Any partial sum is an integer of magnitude at
//         most L: a value of the type, so nothing is ever rounded.
//   mulsum  the same with L/2, and factors 1 and 2.
//   prod  powers of two (with signs where the type has them); at most 6 ranks contribute something other than 1 or -1,
//         so partial products lie in 2^-6 .. 2^6, which are normal numbers of every floating type and fit every
//         integer.
//   min, max  small integers.
//   band, bor, bxor  small integers, whose bits beyond the type's width all are the sign's.
//   avg   all ranks give the same v, plus d from one and minus d from the other of a pair of ranks; magnitudes add up
//   to
//         at most L. The sum is exactly n v, so that the quotient v is a value of the type: a correctly rounded
//         division gives exactly v.
// Data repeats after a prime number of elements, so that a chunk in a wrong place is a difference.
#pragma once

#include <cstddef>
#include <vector>

#include "tutti/types.hpp"

namespace tutti::perf {

/// Not thread-safe.
class Pattern {
 public:
  static constexpr std::size_t kPeriod = 10007;
  static constexpr int kReduced = -1;  // as a source: the reduction over all ranks

  Pattern(DataType type, ReduceOp op, int ranks);

  /// Different iterations send different data.
  void set_iteration(std::size_t iteration) { shift_ = iteration * 2503; }
  /// Returns premul_sum's factor of this rank's contribution; 1 for other operations.
  double factor(int rank) const;

  /// Writes what `source` gives at positions phase, phase + 1, ...
  void fill(void* data, std::size_t count, int source, std::size_t phase);
  /// How many of the elements are not what `source` (or the reduction) gives there.
  std::size_t count_wrong(const void* data, std::size_t count, int source, std::size_t phase);

  /// One contribution, as a number. Pure.
  double contribution(int rank, std::size_t position) const;
  double reduced(std::size_t position) const;

 private:
  const std::vector<std::byte>& table(int source);

  const DataType type_;
  const ReduceOp op_;
  const int ranks_;
  std::size_t shift_ = 0;
  std::vector<std::vector<std::byte>> tables_;  // one period for each rank and, last, for the reduction; made on demand
};

/// band, bor or bxor of two whole numbers.
double combine_bits(double a, double b, ReduceOp op);

/// The largest number up to which every integer is a value of the type.
double exact_integer_limit(DataType type);

/// `value` as the bits of `type`, and back. REQUIRES for encode: it is a value of the type. Independent of the
/// library's own conversions, which are under test here.
void encode(double value, DataType type, void* element);
double decode(const void* element, DataType type);

}  // namespace tutti::perf
