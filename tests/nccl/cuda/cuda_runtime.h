/* In place of CUDA's header, so that NCCL's compiles without a toolkit: of CUDA it uses this type only. */
#ifndef TUTTI_TESTS_CUDA_RUNTIME_H
#define TUTTI_TESTS_CUDA_RUNTIME_H
#include <stddef.h>
typedef struct CUstream_st* cudaStream_t;
#endif
