/* Every collective, type and operator against expected values, and what groups may hold. */
#include <stdlib.h>
#include <string.h>

#include "program.h"

#define COUNT 1003 /* not a multiple of anything that matters */

static const ncclRedOp_t operators[] = {ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg};

/* 1 or 2: sums of up to 4 and products are exact in every type. */
static double value(int rank, size_t i) { return 1 + (double)(((size_t)rank + i) % 2); }

/* What rank `rank` gives to a reduction by `op`: for an average, something that divides. */
static double given(ncclRedOp_t op, int rank, size_t i) { return op == ncclAvg ? 1 + (double)(i % 2) : value(rank, i); }

static double reduced(ncclRedOp_t op, int size, size_t i) {
  double result = given(op, 0, i);
  for (int r = 1; r < size; ++r) {
    const double x = given(op, r, i);
    switch (op) {
      case ncclProd: result *= x; break;
      case ncclMax: result = x > result ? x : result; break;
      case ncclMin: result = x < result ? x : result; break;
      default: result += x;
    }
  }
  return op == ncclAvg ? result / size : result;
}

/* The buffers of the ranks of this thread, `ranks->size` blocks of COUNT elements each. */
typedef struct {
  void* send[MOST_RANKS];
  void* recv[MOST_RANKS];
} buffers_t;

static buffers_t allocate(const ranks_t* ranks) {
  buffers_t b = {{NULL}, {NULL}};
  for (int k = 0; k < ranks->count; ++k) {
    const size_t bytes = (size_t)ranks->size * COUNT * 8;
    MUST(ncclMemAlloc(&b.send[k], bytes)); /* one registered, one not */
    b.recv[k] = malloc(bytes);
  }
  return b;
}

static void release(const ranks_t* ranks, buffers_t* b) {
  for (int k = 0; k < ranks->count; ++k) {
    MUST(ncclMemFree(b->send[k]));
    free(b->recv[k]);
  }
}

static void* block(void* buffer, ncclDataType_t type, int number) {
  return (char*)buffer + (size_t)number * COUNT * size_of(type);
}

/* Whole vectors of this rank's contributions to a reduction. */
static void fill(const ranks_t* ranks, buffers_t* b, ncclDataType_t type, ncclRedOp_t op, int blocks) {
  for (int k = 0; k < ranks->count; ++k) {
    for (size_t i = 0; i < (size_t)blocks * COUNT; ++i) put(type, b->send[k], i, given(op, ranks->rank[k], i));
    memset(b->recv[k], 0, (size_t)blocks * COUNT * size_of(type));
  }
}

#define FOR_EACH_RANK(call)                            \
  do {                                                 \
    MUST(ncclGroupStart());                            \
    for (int k = 0; k < ranks->count; ++k) MUST(call); \
    MUST(ncclGroupEnd());                              \
  } while (0)

static void reductions(ranks_t* ranks, buffers_t* b, ncclDataType_t type, ncclRedOp_t op) {
  const int size = ranks->size;
  fill(ranks, b, type, op, size);
  FOR_EACH_RANK(ncclAllReduce(b->send[k], b->recv[k], COUNT, type, op, ranks->comm[k], NULL));
  for (int k = 0; k < ranks->count; ++k) {
    for (size_t i = 0; i < COUNT; ++i) expect(ranks, "all_reduce", type, b->recv[k], i, reduced(op, size, i));
  }
  const int root = (int)op % size;
  FOR_EACH_RANK(
      ncclReduce(b->send[k], ranks->rank[k] == root ? b->recv[k] : NULL, COUNT, type, op, root, ranks->comm[k], NULL));
  for (int k = 0; k < ranks->count; ++k) {
    if (ranks->rank[k] != root) continue;
    for (size_t i = 0; i < COUNT; ++i) expect(ranks, "reduce", type, b->recv[k], i, reduced(op, size, i));
  }
  FOR_EACH_RANK(ncclReduceScatter(b->send[k], b->recv[k], COUNT, type, op, ranks->comm[k], NULL));
  for (int k = 0; k < ranks->count; ++k) {
    const size_t from = (size_t)ranks->rank[k] * COUNT;
    for (size_t i = 0; i < COUNT; ++i)
      expect(ranks, "reduce_scatter", type, b->recv[k], i, reduced(op, size, from + i));
  }
  /* In place. */
  FOR_EACH_RANK(ncclAllReduce(b->send[k], b->send[k], COUNT, type, op, ranks->comm[k], NULL));
  for (int k = 0; k < ranks->count; ++k) {
    for (size_t i = 0; i < COUNT; ++i) expect(ranks, "all_reduce in place", type, b->send[k], i, reduced(op, size, i));
  }
}

/* Each rank's share is multiplied by its rank + 1; the factor is read at once, or when the call runs. */
static void scaled(ranks_t* ranks, buffers_t* b, ncclDataType_t type, ncclScalarResidence_t residence) {
  char scalars[MOST_RANKS][8];
  ncclRedOp_t ops[MOST_RANKS];
  for (int k = 0; k < ranks->count; ++k) {
    for (size_t i = 0; i < COUNT; ++i) put(type, b->send[k], i, 1);
    put(type, scalars[k], 0, residence == ncclScalarDevice ? 1 : ranks->rank[k] + 1);
    MUST(ncclRedOpCreatePreMulSum(&ops[k], scalars[k], type, residence, ranks->comm[k]));
    put(type, scalars[k], 0, residence == ncclScalarDevice ? ranks->rank[k] + 1 : 1);
  }
  FOR_EACH_RANK(ncclAllReduce(b->send[k], b->recv[k], COUNT, type, ops[k], ranks->comm[k], NULL));
  for (int k = 0; k < ranks->count; ++k) {
    for (size_t i = 0; i < COUNT; ++i) {
      expect(ranks, "pre_mul_sum", type, b->recv[k], i, (double)(ranks->size * (ranks->size + 1)) / 2);
    }
    MUST(ncclRedOpDestroy(ops[k], ranks->comm[k]));
  }
}

/* What rank `from` has for rank `to`. */
static double parcel(int from, int to, size_t i) { return (from * 3 + to * 5 + (int)(i % 7)) % 8; }

static void fill_parcels(const ranks_t* ranks, buffers_t* b, ncclDataType_t type) {
  for (int k = 0; k < ranks->count; ++k) {
    for (int to = 0; to < ranks->size; ++to) {
      for (size_t i = 0; i < COUNT; ++i) put(type, block(b->send[k], type, to), i, parcel(ranks->rank[k], to, i));
    }
    memset(b->recv[k], 0, (size_t)ranks->size * COUNT * size_of(type));
  }
}

static void movements(ranks_t* ranks, buffers_t* b, ncclDataType_t type) {
  const int size = ranks->size;
  const int root = size - 1;
  fill_parcels(ranks, b, type);
  FOR_EACH_RANK(ncclAllGather(b->send[k], b->recv[k], COUNT, type, ranks->comm[k], NULL));
  for (int k = 0; k < ranks->count; ++k) {
    for (int r = 0; r < size; ++r) {
      for (size_t i = 0; i < COUNT; ++i)
        expect(ranks, "all_gather", type, block(b->recv[k], type, r), i, parcel(r, 0, i));
    }
  }
  FOR_EACH_RANK(ncclAlltoAll(b->send[k], b->recv[k], COUNT, type, ranks->comm[k], NULL));
  for (int k = 0; k < ranks->count; ++k) {
    for (int r = 0; r < size; ++r) {
      for (size_t i = 0; i < COUNT; ++i) {
        expect(ranks, "all_to_all", type, block(b->recv[k], type, r), i, parcel(r, ranks->rank[k], i));
      }
    }
  }
  FOR_EACH_RANK(
      ncclGather(b->send[k], ranks->rank[k] == root ? b->recv[k] : NULL, COUNT, type, root, ranks->comm[k], NULL));
  for (int k = 0; k < ranks->count; ++k) {
    if (ranks->rank[k] != root) continue;
    for (int r = 0; r < size; ++r) {
      for (size_t i = 0; i < COUNT; ++i) expect(ranks, "gather", type, block(b->recv[k], type, r), i, parcel(r, 0, i));
    }
  }
  FOR_EACH_RANK(
      ncclScatter(ranks->rank[k] == root ? b->send[k] : NULL, b->recv[k], COUNT, type, root, ranks->comm[k], NULL));
  for (int k = 0; k < ranks->count; ++k) {
    for (size_t i = 0; i < COUNT; ++i) expect(ranks, "scatter", type, b->recv[k], i, parcel(root, ranks->rank[k], i));
  }
  FOR_EACH_RANK(ncclBroadcast(b->send[k], b->recv[k], COUNT, type, root, ranks->comm[k], NULL));
  for (int k = 0; k < ranks->count; ++k) {
    for (size_t i = 0; i < COUNT; ++i) expect(ranks, "broadcast", type, b->recv[k], i, parcel(root, 0, i));
  }
  FOR_EACH_RANK(ncclBcast(b->send[k], COUNT, type, 0, ranks->comm[k], NULL));
  for (int k = 0; k < ranks->count; ++k) {
    for (size_t i = 0; i < COUNT; ++i) expect(ranks, "bcast", type, b->send[k], i, parcel(0, 0, i));
  }
}

void test_collectives(ranks_t* ranks) {
  buffers_t b = allocate(ranks);
  void* registrations[MOST_RANKS];
  for (int k = 0; k < ranks->count; ++k) {
    int size, rank, device;
    MUST(ncclCommCount(ranks->comm[k], &size));
    MUST(ncclCommUserRank(ranks->comm[k], &rank));
    MUST(ncclCommCuDevice(ranks->comm[k], &device));
    if (size != ranks->size || rank != ranks->rank[k] || device < 0) ++ranks->wrong;
    MUST(ncclCommRegister(ranks->comm[k], b.send[k], (size_t)size * COUNT * 8, &registrations[k]));
  }
  for (int type = 0; type < ncclNumTypes; ++type) {
    for (size_t o = 0; o < sizeof operators / sizeof *operators; ++o) {
      reductions(ranks, &b, (ncclDataType_t)type, operators[o]);
    }
    scaled(ranks, &b, (ncclDataType_t)type, ncclScalarHostImmediate);
    scaled(ranks, &b, (ncclDataType_t)type, ncclScalarDevice);
    movements(ranks, &b, (ncclDataType_t)type);
  }
  FOR_EACH_RANK(ncclAllReduce(NULL, NULL, 0, ncclFloat, ncclSum, ranks->comm[k], NULL)); /* nothing at all */
  for (int k = 0; k < ranks->count; ++k) MUST(ncclCommDeregister(ranks->comm[k], registrations[k]));
  release(ranks, &b);
}

/* ---- Groups ---- */

/* A ring of messages, one to oneself, and two collectives, in one group that holds another one. */
static void mixed_group(ranks_t* ranks, buffers_t* b) {
  const int size = ranks->size;
  fill_parcels(ranks, b, ncclFloat);
  float sums[MOST_RANKS][2];
  MUST(ncclGroupStart());
  for (int k = 0; k < ranks->count; ++k) {
    const int rank = ranks->rank[k];
    const ncclComm_t comm = ranks->comm[k];
    sums[k][0] = (float)rank;
    sums[k][1] = 1;
    MUST(ncclRecv(block(b->recv[k], ncclFloat, 0), COUNT, ncclFloat, (rank + size - 1) % size, comm, NULL));
    MUST(ncclGroupStart());
    MUST(ncclAllReduce(&sums[k][0], &sums[k][0], 1, ncclFloat, ncclSum, comm, NULL));
    MUST(ncclSend(block(b->send[k], ncclFloat, 0), COUNT, ncclFloat, (rank + 1) % size, comm, NULL));
    MUST(ncclGroupEnd());
    MUST(ncclAllReduce(&sums[k][1], &sums[k][1], 1, ncclFloat, ncclSum, comm, NULL));
  }
  MUST(ncclGroupEnd());
  for (int k = 0; k < ranks->count; ++k) {
    const int left = (ranks->rank[k] + size - 1) % size;
    for (size_t i = 0; i < COUNT; ++i) expect(ranks, "ring", ncclFloat, b->recv[k], i, parcel(left, 0, i));
    expect(ranks, "sum of ranks", ncclFloat, sums[k], 0, (double)(size * (size - 1)) / 2);
    expect(ranks, "sum of ones", ncclFloat, sums[k], 1, size);
  }
}

/* Halves of the ranks, in reverse order; used in the same group as the whole. */
static void two_communicators(ranks_t* ranks, buffers_t* b) {
  const int size = ranks->size;
  ncclComm_t halves[MOST_RANKS];
  float sums[MOST_RANKS][2];
  FOR_EACH_RANK(ncclCommSplit(ranks->comm[k], ranks->rank[k] % 2, -ranks->rank[k], &halves[k], NULL));
  MUST(ncclGroupStart());
  for (int k = 0; k < ranks->count; ++k) {
    sums[k][0] = sums[k][1] = (float)ranks->rank[k];
    MUST(ncclAllReduce(&sums[k][0], &sums[k][0], 1, ncclFloat, ncclSum, halves[k], NULL));
    MUST(ncclAllReduce(&sums[k][1], &sums[k][1], 1, ncclFloat, ncclMax, ranks->comm[k], NULL));
  }
  MUST(ncclGroupEnd());
  for (int k = 0; k < ranks->count; ++k) {
    int rank, count, expected = 0, members = 0, before = 0;
    for (int r = ranks->rank[k] % 2; r < size; r += 2) {
      expected += r;
      ++members;
      before += r > ranks->rank[k];
    }
    MUST(ncclCommUserRank(halves[k], &rank));
    MUST(ncclCommCount(halves[k], &count));
    if (rank != before || count != members) ++ranks->wrong;
    expect(ranks, "sum in half", ncclFloat, sums[k], 0, expected);
    expect(ranks, "max in whole", ncclFloat, sums[k], 1, size - 1);
    MUST(ncclCommDestroy(halves[k]));
  }
  (void)b;
}

/* Rank 0 stays out: by split without a colour, and by shrink, which it does not even call. */
static void without_rank_0(ranks_t* ranks) {
  int excluded[] = {0};
  if (ranks->size < 2) return;
  for (int way = 0; way < 2; ++way) {
    ncclComm_t rest[MOST_RANKS] = {NULL};
    float ones[MOST_RANKS];
    MUST(ncclGroupStart());
    for (int k = 0; k < ranks->count; ++k) {
      const int out = ranks->rank[k] == 0;
      if (way == 0) MUST(ncclCommSplit(ranks->comm[k], out ? NCCL_SPLIT_NOCOLOR : 7, 0, &rest[k], NULL));
      if (way == 1 && !out) MUST(ncclCommShrink(ranks->comm[k], excluded, 1, &rest[k], NULL, NCCL_SHRINK_DEFAULT));
    }
    MUST(ncclGroupEnd());
    MUST(ncclGroupStart());
    for (int k = 0; k < ranks->count; ++k) {
      ones[k] = 1;
      if (ranks->rank[k] != 0) MUST(ncclAllReduce(&ones[k], &ones[k], 1, ncclFloat, ncclSum, rest[k], NULL));
    }
    MUST(ncclGroupEnd());
    for (int k = 0; k < ranks->count; ++k) {
      if ((rest[k] == NULL) != (ranks->rank[k] == 0)) ++ranks->wrong;
      expect(ranks, "without rank 0", ncclFloat, ones, (size_t)k, ranks->rank[k] == 0 ? 1 : ranks->size - 1);
      if (rest[k] != NULL) MUST(ncclCommDestroy(rest[k]));
    }
  }
}

void test_groups(ranks_t* ranks) {
  buffers_t b = allocate(ranks);
  MUST(ncclGroupStart()); /* an empty one */
  MUST(ncclGroupEnd());
  mixed_group(ranks, &b);
  two_communicators(ranks, &b);
  without_rank_0(ranks);
  release(ranks, &b);
}
