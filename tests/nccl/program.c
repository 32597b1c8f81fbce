/* The NCCL test program: see program.h. This part starts the ranks. */
#include "program.h"

#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

void must(ncclResult_t result, const char* call, const char* file, int line) {
  if (result == ncclSuccess) return;
  fprintf(stderr, "%s:%d: %s: %s: %s\n", file, line, call, ncclGetErrorString(result), ncclGetLastError(NULL));
  exit(1);
}

/* ---- Elements ---- */

/* Exponent and fraction bits of the floats that C has no type for; 0 for the others. */
static int exponent_bits(ncclDataType_t type) {
  switch (type) {
    case ncclFloat16: return 5;
    case ncclBfloat16: return 8;
    case ncclFloat8e4m3: return 4;
    case ncclFloat8e5m2: return 5;
    default: return 0;
  }
}

size_t size_of(ncclDataType_t type) {
  static const size_t sizes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return sizes[type];
}

static int fraction_bits(ncclDataType_t type) { return (int)size_of(type) * 8 - 1 - exponent_bits(type); }

static unsigned encode(ncclDataType_t type, double value) {
  const int fraction = fraction_bits(type);
  const int bias = (1 << (exponent_bits(type) - 1)) - 1;
  int exponent;
  const double mantissa = frexp(fabs(value), &exponent); /* in [0.5, 1) */
  if (value == 0) return 0;
  return (unsigned)(exponent - 1 + bias) << fraction | (unsigned)ldexp(2 * mantissa - 1, fraction);
}

static double decode(ncclDataType_t type, unsigned bits) {
  const int fraction = fraction_bits(type);
  const int bias = (1 << (exponent_bits(type) - 1)) - 1;
  if (bits == 0) return 0;
  return ldexp(1 + ldexp(bits & ((1u << fraction) - 1), -fraction), (int)(bits >> fraction) - bias);
}

void put(ncclDataType_t type, void* buffer, size_t i, double value) {
  switch (type) {
    case ncclInt8: ((int8_t*)buffer)[i] = (int8_t)value; break;
    case ncclUint8: ((uint8_t*)buffer)[i] = (uint8_t)value; break;
    case ncclInt32: ((int32_t*)buffer)[i] = (int32_t)value; break;
    case ncclUint32: ((uint32_t*)buffer)[i] = (uint32_t)value; break;
    case ncclInt64: ((int64_t*)buffer)[i] = (int64_t)value; break;
    case ncclUint64: ((uint64_t*)buffer)[i] = (uint64_t)value; break;
    case ncclFloat32: ((float*)buffer)[i] = (float)value; break;
    case ncclFloat64: ((double*)buffer)[i] = value; break;
    case ncclFloat16:
    case ncclBfloat16: ((uint16_t*)buffer)[i] = (uint16_t)encode(type, value); break;
    default: ((uint8_t*)buffer)[i] = (uint8_t)encode(type, value); break;
  }
}

double get(ncclDataType_t type, const void* buffer, size_t i) {
  switch (type) {
    case ncclInt8: return ((const int8_t*)buffer)[i];
    case ncclUint8: return ((const uint8_t*)buffer)[i];
    case ncclInt32: return ((const int32_t*)buffer)[i];
    case ncclUint32: return ((const uint32_t*)buffer)[i];
    case ncclInt64: return (double)((const int64_t*)buffer)[i];
    case ncclUint64: return (double)((const uint64_t*)buffer)[i];
    case ncclFloat32: return ((const float*)buffer)[i];
    case ncclFloat64: return ((const double*)buffer)[i];
    case ncclFloat16:
    case ncclBfloat16: return decode(type, ((const uint16_t*)buffer)[i]);
    default: return decode(type, ((const uint8_t*)buffer)[i]);
  }
}

void expect(ranks_t* ranks, const char* what, ncclDataType_t type, const void* buffer, size_t i, double expected) {
  const double found = get(type, buffer, i);
  ++ranks->checks;
  if (found == expected) return;
  if (ranks->wrong++ < 5) {
    fprintf(stderr, "rank %d of %d: %s, type %d: element %zu is %g; expected %g\n", ranks->rank[0], ranks->size, what,
            (int)type, i, found, expected);
  }
}

/* ---- Starting the ranks ---- */

typedef void test_t(ranks_t* ranks);

static void test_everything(ranks_t* ranks) {
  test_collectives(ranks);
  test_groups(ranks);
  test_newer(ranks);
}

/* Says how it went; the exit status. */
static int finish(const ranks_t* ranks) {
  printf("%s %d of %d: %ld elements, %ld wrong\n", ranks->count > 1 ? "ranks from" : "rank", ranks->rank[0],
         ranks->size, ranks->checks, ranks->wrong);
  fflush(stdout);
  return ranks->wrong == 0 && ranks->checks > 0 ? 0 : 1;
}

static int run_init_all(int size, test_t* test) {
  ranks_t ranks = {.size = size, .count = size};
  int devices[MOST_RANKS];
  for (int r = 0; r < size; ++r) ranks.rank[r] = devices[r] = r;
  MUST(ncclCommInitAll(ranks.comm, size, devices));
  test(&ranks);
  for (int r = 0; r < size; ++r) MUST(ncclCommDestroy(ranks.comm[r]));
  return finish(&ranks);
}

static int run_rank(int size, int rank, ncclUniqueId id, test_t* test) {
  ranks_t ranks = {.size = size, .count = 1, .rank = {rank}};
  MUST(ncclCommInitRank(&ranks.comm[0], size, id, rank));
  test(&ranks);
  MUST(ncclCommFinalize(ranks.comm[0]));
  MUST(ncclCommDestroy(ranks.comm[0]));
  return finish(&ranks);
}

typedef struct {
  int size, rank, status;
  ncclUniqueId id;
  test_t* test;
} thread_t;

static void* run_thread(void* argument) {
  thread_t* thread = argument;
  thread->status = run_rank(thread->size, thread->rank, thread->id, thread->test);
  return NULL;
}

static int run_threads(int size, test_t* test) {
  pthread_t handles[MOST_RANKS];
  thread_t threads[MOST_RANKS];
  ncclUniqueId id;
  int status = 0;
  MUST(ncclGetUniqueId(&id));
  for (int r = 0; r < size; ++r) {
    threads[r] = (thread_t){.size = size, .rank = r, .id = id, .test = test};
    if (pthread_create(&handles[r], NULL, run_thread, &threads[r]) != 0) abort();
  }
  for (int r = 0; r < size; ++r) {
    pthread_join(handles[r], NULL);
    status |= threads[r].status;
  }
  return status;
}

/* Rank 0 makes the id, and gives it to each of the others through a pipe. */
static int run_processes(int size, test_t* test) {
  int pipes[MOST_RANKS][2];
  pid_t children[MOST_RANKS];
  int status = 0;
  for (int r = 0; r < size; ++r) {
    if (pipe(pipes[r]) != 0) abort();
  }
  for (int r = 0; r < size; ++r) {
    children[r] = fork();
    if (children[r] != 0) continue;
    ncclUniqueId id;
    if (r == 0) {
      MUST(ncclGetUniqueId(&id));
      for (int other = 1; other < size; ++other) {
        if (write(pipes[other][1], &id, sizeof id) != sizeof id) abort();
      }
    } else if (read(pipes[r][0], &id, sizeof id) != sizeof id) {
      abort();
    }
    exit(run_rank(size, r, id, test));
  }
  for (int r = 0; r < size; ++r) {
    int ended;
    waitpid(children[r], &ended, 0);
    status |= ended != 0;
  }
  return status;
}

int main(int argc, char** argv) {
  const char* how = argc == 3 ? argv[1] : "";
  const int size = argc == 3 ? atoi(argv[2]) : 0;
  int version = 0;
  if (size >= 1 && size <= MOST_RANKS) {
    MUST(ncclGetVersion(&version));
    if (version < NCCL_VERSION_CODE) {
      fprintf(stderr, "the library is version %d, the header %d\n", version, NCCL_VERSION_CODE);
      return 1;
    }
    if (strcmp(how, "init_all") == 0) return run_init_all(size, test_everything);
    if (strcmp(how, "threads") == 0) return run_threads(size, test_everything);
    if (strcmp(how, "processes") == 0) return run_processes(size, test_everything);
    if (strcmp(how, "sequence") == 0) return run_processes(size, test_sequence);
  }
  fprintf(stderr, "usage: program init_all|threads|processes|sequence RANKS\n");
  return 2;
}
