// The body for machines with AVX-512 F, BW, VL and DQ; compiled with these options by cmake/tutti_reduce.cmake.
#if defined(__AVX512BW__)  // else: another architecture, where this file is empty
#define TUTTI_REDUCE_VECTOR_BYTES 64
#define TUTTI_REDUCE_BODY kBodyAvx512
#define TUTTI_REDUCE_ISA "avx512"
#include "collectives/reduce/body-inl.h"
#endif
