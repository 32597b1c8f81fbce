/* The calls of nccl-tests 2.19, in its order, for one collective of each kind: what all_reduce_perf, sendrecv_perf and
 * alltoall_perf do with NCCL (src/common.cu, threadRunTests and BenchTime): a configuration, buffers by ncclMemAlloc,
 * registration, a warm-up, timed and aggregated iterations in a group each, in place and out of place, a check of the
 * results, and asynchronous errors looked for while waiting. */
#include "program.h"

#define COUNT 4096
#define ITERATIONS 5
#define AGGREGATED 3

static void poll_errors(ncclComm_t comm) {
  ncclResult_t error;
  MUST(ncclCommGetAsyncError(comm, &error));
  MUST(error);
}

static void all_reduce(float* send, float* recv, ncclComm_t comm) {
  for (int i = 0; i < ITERATIONS; ++i) {
    MUST(ncclGroupStart());
    for (int a = 0; a < AGGREGATED; ++a) MUST(ncclAllReduce(send, recv, COUNT, ncclFloat, ncclSum, comm, NULL));
    MUST(ncclGroupEnd());
  }
  poll_errors(comm);
}

static void send_recv(ranks_t* ranks, const float* send, float* recv) {
  const int rank = ranks->rank[0];
  MUST(ncclGroupStart());
  MUST(ncclSend(send, COUNT, ncclFloat, (rank + 1) % ranks->size, ranks->comm[0], NULL));
  MUST(ncclRecv(recv, COUNT, ncclFloat, (rank - 1 + ranks->size) % ranks->size, ranks->comm[0], NULL));
  MUST(ncclGroupEnd());
  poll_errors(ranks->comm[0]);
}

/* As it was written before 2.28 had ncclAlltoAll. */
static void all_to_all(ranks_t* ranks, const float* send, float* recv) {
  const size_t share = COUNT / (size_t)ranks->size;
  MUST(ncclGroupStart());
  for (int r = 0; r < ranks->size; ++r) {
    MUST(ncclSend(send + (size_t)r * share, share, ncclFloat, r, ranks->comm[0], NULL));
    MUST(ncclRecv(recv + (size_t)r * share, share, ncclFloat, r, ranks->comm[0], NULL));
  }
  MUST(ncclGroupEnd());
  poll_errors(ranks->comm[0]);
}

void test_sequence(ranks_t* ranks) {
  const int rank = ranks->rank[0];
  const int size = ranks->size;
  int count, number;
  float *send, *recv;
  void *send_handle, *recv_handle;
  MUST(ncclMemAlloc((void**)&send, COUNT * sizeof(float)));
  MUST(ncclMemAlloc((void**)&recv, COUNT * sizeof(float)));
  MUST(ncclCommRegister(ranks->comm[0], send, COUNT * sizeof(float), &send_handle));
  MUST(ncclCommRegister(ranks->comm[0], recv, COUNT * sizeof(float), &recv_handle));
  MUST(ncclCommCount(ranks->comm[0], &count));
  MUST(ncclCommUserRank(ranks->comm[0], &number));
  for (int i = 0; i < COUNT; ++i) send[i] = (float)(rank + i % 5);
  all_reduce(send, recv, ranks->comm[0]);
  for (size_t i = 0; i < COUNT; ++i) {
    expect(ranks, "all_reduce", ncclFloat, recv, i, (double)(size * (size - 1)) / 2 + size * (double)(i % 5));
  }
  send_recv(ranks, send, recv);
  for (size_t i = 0; i < COUNT; ++i) {
    expect(ranks, "send_recv", ncclFloat, recv, i, (rank - 1 + size) % size + (double)(i % 5));
  }
  all_to_all(ranks, send, recv);
  const size_t share = COUNT / (size_t)size;
  for (size_t r = 0; r < (size_t)size; ++r) {
    for (size_t i = 0; i < share; ++i) {
      expect(ranks, "all_to_all", ncclFloat, recv, r * share + i, (double)r + (double)(((size_t)rank * share + i) % 5));
    }
  }
  MUST(ncclCommDeregister(ranks->comm[0], send_handle));
  MUST(ncclCommDeregister(ranks->comm[0], recv_handle));
  MUST(ncclMemFree(send));
  MUST(ncclMemFree(recv));
}
