// What a body file and reduce.cc share. Kept apart from body.h so that the files that are compiled for a wider
// instruction set include no standard header with functions in it.
#pragma once

#include <cstddef>

#include "tutti/types.hpp"

namespace tutti::reduce {

/// reduce()'s arguments in the form that the bodies take.
struct Job {
  void* const* dsts;
  const void* const* srcs;
  std::size_t n_dsts;
  std::size_t n_srcs;
  std::size_t bytes;
  double divide_by;
  const double* factors;
  bool streaming;
};

/// One instruction set's loops. Constant, lives as long as the program.
struct Body {
  const char* isa;
  // [type][op]; avg always divides, premul_sum always multiplies; null where the op does not apply to the type.
  void (*kernels[kDataTypes][kReduceOps])(const Job&);
  /// src to dst (disjoint) with stores past the cache, and no fence.
  void (*stream_copy)(void* dst, const void* src, std::size_t bytes);
  /// Orders the stores of stream_copy before later ones.
  void (*fence)();
};

// Not every build has all three; see cmake/tutti_reduce.cmake.
extern const Body kBodyGeneric;
extern const Body kBodyAvx2;
extern const Body kBodyAvx512;

}  // namespace tutti::reduce
