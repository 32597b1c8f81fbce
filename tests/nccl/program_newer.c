/* What has come since 2.28: the collectives with a configuration, and the memory of a communicator. Nothing where the
 * header is older. */
#include "program.h"

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 32, 0)

#define COUNT 100

#define FOR_EACH_RANK(call)                            \
  do {                                                 \
    MUST(ncclGroupStart());                            \
    for (int k = 0; k < ranks->count; ++k) MUST(call); \
    MUST(ncclGroupEnd());                              \
  } while (0)

typedef struct {
  float send[MOST_RANKS * COUNT];
  float recv[MOST_RANKS * COUNT];
} data_t;

static data_t data[MOST_RANKS]; /* of the ranks that this process drives */

static void expect_all(ranks_t* ranks, const char* what, const data_t* of, double expected) {
  for (size_t i = 0; i < COUNT; ++i) expect(ranks, what, ncclFloat, of->recv, i, expected);
}

/* Every rank gives its number + 1, everywhere. */
static void fill(ranks_t* ranks, data_t* own) {
  for (int k = 0; k < ranks->count; ++k) {
    for (int i = 0; i < MOST_RANKS * COUNT; ++i) {
      own[k].send[i] = (float)(ranks->rank[k] + 1);
      own[k].recv[i] = 0;
    }
  }
}

static void collectives(ranks_t* ranks, data_t* own, const ncclCollConfig_t* config) {
  const int size = ranks->size;
  const int root = size - 1;
  const double sum = size * (size + 1) / 2.0;
  fill(ranks, own);
  FOR_EACH_RANK(ncclAllReduceConfig(own[k].send, own[k].recv, COUNT, ncclFloat, ncclSum, ranks->comm[k], NULL, config));
  for (int k = 0; k < ranks->count; ++k) expect_all(ranks, "AllReduceConfig", &own[k], sum);
  FOR_EACH_RANK(
      ncclReduceScatterConfig(own[k].send, own[k].recv, COUNT, ncclFloat, ncclMax, ranks->comm[k], NULL, config));
  for (int k = 0; k < ranks->count; ++k) expect_all(ranks, "ReduceScatterConfig", &own[k], size);
  FOR_EACH_RANK(ncclBroadcastConfig(own[k].send, own[k].recv, COUNT, ncclFloat, root, ranks->comm[k], NULL, config));
  for (int k = 0; k < ranks->count; ++k) expect_all(ranks, "BroadcastConfig", &own[k], root + 1);
  fill(ranks, own);
  FOR_EACH_RANK(
      ncclReduceConfig(own[k].send, own[k].recv, COUNT, ncclFloat, ncclSum, root, ranks->comm[k], NULL, config));
  for (int k = 0; k < ranks->count; ++k) {
    if (ranks->rank[k] == root) expect_all(ranks, "ReduceConfig", &own[k], sum);
  }
  FOR_EACH_RANK(ncclScatterConfig(own[k].send, own[k].recv, COUNT, ncclFloat, root, ranks->comm[k], NULL, config));
  for (int k = 0; k < ranks->count; ++k) expect_all(ranks, "ScatterConfig", &own[k], root + 1);
  for (int way = 0; way < 3; ++way) { /* each block from another rank */
    fill(ranks, own);
    if (way == 0) {
      FOR_EACH_RANK(ncclAllGatherConfig(own[k].send, own[k].recv, COUNT, ncclFloat, ranks->comm[k], NULL, config));
    } else if (way == 1) {
      FOR_EACH_RANK(ncclAlltoAllConfig(own[k].send, own[k].recv, COUNT, ncclFloat, ranks->comm[k], NULL, config));
    } else {
      FOR_EACH_RANK(ncclGatherConfig(own[k].send, own[k].recv, COUNT, ncclFloat, root, ranks->comm[k], NULL, config));
    }
    for (int k = 0; k < ranks->count; ++k) {
      for (int i = 0; i < size * COUNT && (way < 2 || ranks->rank[k] == root); ++i) {
        expect(ranks, "AllGatherConfig, AlltoAllConfig, GatherConfig", ncclFloat, own[k].recv, (size_t)i,
               i / COUNT + 1);
      }
    }
  }
}

static void memory(ranks_t* ranks) {
  FOR_EACH_RANK(ncclCommSuspend(ranks->comm[k], NCCL_SUSPEND_MEM));
  for (int k = 0; k < ranks->count; ++k) {
    uint64_t bytes = 1, suspended = 0;
    MUST(ncclCommMemStats(ranks->comm[k], ncclStatGpuMemTotal, &bytes));
    MUST(ncclCommMemStats(ranks->comm[k], ncclStatGpuMemSuspended, &suspended));
    if (bytes != 0 || suspended != 1) ++ranks->wrong;
  }
  FOR_EACH_RANK(ncclCommResume(ranks->comm[k]));
}

void test_newer(ranks_t* ranks) {
  ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
  /* Ranks that are threads take their places by number. */
  data_t* own = ranks->count > 1 ? data : &data[ranks->rank[0]];
  collectives(ranks, own, NULL);
  memory(ranks);
  config.algSelection = "ring";
  config.forceAlgSelection = 0;
  config.minCTAs = 1;
  collectives(ranks, own, &config);
}

#else

void test_newer(ranks_t* ranks) { (void)ranks; }

#endif
