/* Preloaded into a program on the CUDA runtime's shared library: it sees kSeen GPUs, which are those that there are, in
 * turn. So nccl-tests, which wants a GPU for each rank, runs several on one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

enum { kSeen = 64 };

static void* next(const char* name) {
  void* const function = dlsym(RTLD_NEXT, name);
  if (function != NULL) return function;
  fprintf(stderr, "one_gpu: the program has no %s of a shared CUDA runtime behind it\n", name);
  abort();
}

static int is_there(int device) {
  int (*const count_devices)(int*) = (int (*)(int*))next("cudaGetDeviceCount");
  int count = 0;
  return count_devices(&count) == 0 && count > 0 ? device % count : device;
}

/* What follows has the runtime's names and its ABI; 0 is success. */

int cudaGetDeviceCount(int* count) {
  int (*const call)(int*) = (int (*)(int*))next("cudaGetDeviceCount");
  const int status = call(count);
  if (status == 0 && *count > 0) *count = kSeen;
  return status;
}

int cudaSetDevice(int device) {
  int (*const call)(int) = (int (*)(int))next("cudaSetDevice");
  return call(is_there(device));
}

int cudaDeviceGetAttribute(int* value, int attribute, int device) {
  int (*const call)(int*, int, int) = (int (*)(int*, int, int))next("cudaDeviceGetAttribute");
  return call(value, attribute, is_there(device));
}

int cudaGetDeviceProperties(void* properties, int device) {
  int (*const call)(void*, int) = (int (*)(void*, int))next("cudaGetDeviceProperties");
  return call(properties, is_there(device));
}

int cudaGetDeviceProperties_v2(void* properties, int device) { /* of CUDA 12 */
  int (*const call)(void*, int) = (int (*)(void*, int))next("cudaGetDeviceProperties_v2");
  return call(properties, is_there(device));
}
