/* In place of the driver's header, of which NCCL's device interface uses one enumeration. */
#ifndef TUTTI_TESTS_CUDA_H
#define TUTTI_TESTS_CUDA_H
typedef int CUmemLocationType;
#endif
