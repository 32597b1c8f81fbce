/* In place of CUDA's header, so that NCCL's compiles without a toolkit: of CUDA it uses these types only. */
#ifndef TUTTI_TESTS_CUDA_RUNTIME_H
#define TUTTI_TESTS_CUDA_RUNTIME_H
#include <stddef.h>
typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
#endif
