// The body for machines with AVX2 and F16C; compiled with these options by cmake/tutti_reduce.cmake.
#if defined(__AVX2__)  // else: another architecture, where this file is empty
#define TUTTI_REDUCE_VECTOR_BYTES 32
#define TUTTI_REDUCE_BODY kBodyAvx2
#define TUTTI_REDUCE_ISA "avx2"
#include "collectives/reduce/body-inl.h"
#endif
