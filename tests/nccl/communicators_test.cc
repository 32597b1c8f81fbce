// How communicators are made and how they end: configurations, non-blocking ones, split, shrink.
#include <gmock/gmock.h>

#include <cstddef>
#include <functional>
#include <vector>

#include "tests/nccl/ranks.h"

namespace tutti::nccl::testing::communicators_test {
namespace {

/// Two ranks, made on a thread each with `config`.
std::vector<ncclComm_t> init_two(ncclConfig_t config) {
  ncclUniqueId id;
  EXPECT_DONE(ncclGetUniqueId(&id));
  std::vector<ncclComm_t> comms(2);
  on_threads(2, [&](int rank) {
    ncclConfig_t own = config;
    const ncclResult_t result = ncclCommInitRankConfig(&comms[static_cast<std::size_t>(rank)], 2, id, rank, &own);
    EXPECT_EQ(result, config.blocking == 0 ? ncclInProgress : ncclSuccess) << ncclGetLastError(nullptr);
  });
  return comms;
}

TEST(Communicators, ConfigurationsAreChecked) {
  ncclUniqueId id;
  EXPECT_DONE(ncclGetUniqueId(&id));
  ncclComm_t comm = nullptr;
  const auto attempt = [&](const std::function<void(ncclConfig_t&)>& change) {
    ncclConfig_t config = new_config();
    change(config);
    return ncclCommInitRankConfig(&comm, 1, id, 0, &config);
  };
  EXPECT_NCCL(attempt([](ncclConfig_t& c) { c.magic = 1; }), ncclInvalidArgument, HasSubstr("NCCL_CONFIG_INITIALIZER"));
  EXPECT_NCCL(attempt([](ncclConfig_t& c) { c.size = 8; }), ncclInvalidArgument, HasSubstr("its size 8"));
  EXPECT_NCCL(attempt([](ncclConfig_t& c) { c.blocking = 2; }), ncclInvalidArgument,
              HasSubstr("ncclCommInitRankConfig: config.blocking is 2; expected 0 to 1"));
  EXPECT_NCCL(attempt([](ncclConfig_t& c) { c.cgaClusterSize = 9; }), ncclInvalidArgument,
              HasSubstr("cgaClusterSize is 9"));
  EXPECT_NCCL(attempt([](ncclConfig_t& c) { c.minCTAs = 4, c.maxCTAs = 2; }), ncclInvalidArgument,
              HasSubstr("minCTAs is 4"));
  EXPECT_NCCL(attempt([](ncclConfig_t& c) { c.netName = "IB"; }), ncclInvalidUsage, HasSubstr("netName is 'IB'"));
  EXPECT_NCCL(attempt([](ncclConfig_t& c) { c.graphUsageMode = 3; }), ncclInvalidArgument,
              HasSubstr("config.graphUsageMode is 3; expected 0 to 2"));
  EXPECT_NCCL(attempt([](ncclConfig_t& c) { c.hostCftMode = 0; }), ncclInvalidArgument, HasSubstr("hostCftMode is 0"));
  // The first version of the struct ended after `blocking`; what comes behind is not looked at. Later ones may go on.
  EXPECT_DONE(attempt([](ncclConfig_t& c) { c.size = offsetof(ncclConfig_t, cgaClusterSize), c.cgaClusterSize = 99; }));
  EXPECT_DONE(ncclCommDestroy(comm));
  EXPECT_DONE(ncclGetUniqueId(&id));
  EXPECT_DONE(attempt([](ncclConfig_t& c) { c.size = sizeof(c) + 64, c.commName = "trainer", c.minCTAs = 2; }));
  float x = 1;
  EXPECT_NCCL(ncclBcast(&x, 1, ncclFloat32, 3, comm, nullptr), ncclInvalidArgument,
              HasSubstr("ncclBcast: rank 0 of 'trainer': root is 3"));
  EXPECT_DONE(ncclCommDestroy(comm));
}

// A struct's last bytes may be padding, which a later header has a field in, and which is whatever lay there.
TEST(Communicators, PaddingOfAnOlderConfigurationIsNotRead) {
  const auto attempt = [](unsigned version, std::size_t size, int ncclConfig_t::*padding) {
    ncclUniqueId id;
    EXPECT_DONE(ncclGetUniqueId(&id));
    ncclComm_t comm = nullptr;
    ncclConfig_t config = new_config();
    config.version = version;
    config.size = size;
    config.*padding = -77;
    const ncclResult_t result = ncclCommInitRankConfig(&comm, 1, id, 0, &config);
    EXPECT_DONE(ncclCommDestroy(comm));
    return result;
  };
  EXPECT_DONE(attempt(21400, offsetof(ncclConfig_t, minCTAs), &ncclConfig_t::cgaClusterSize));
  EXPECT_DONE(attempt(21800, offsetof(ncclConfig_t, commName), &ncclConfig_t::trafficClass));
  EXPECT_DONE(attempt(23000, offsetof(ncclConfig_t, launchOrderImplicit), &ncclConfig_t::graphStreamOrdering));
  EXPECT_NCCL(attempt(23005, offsetof(ncclConfig_t, launchOrderImplicit), &ncclConfig_t::graphStreamOrdering),
              ncclInvalidArgument, HasSubstr("config.graphStreamOrdering is -77; expected 0 to 1"));
}

TEST(Communicators, NonBlocking) {
  ncclConfig_t config = new_config();
  config.blocking = 0;
  const std::vector<ncclComm_t> comms = init_two(config);
  on_threads(2, [&](int rank) {
    const ncclComm_t comm = comms[static_cast<std::size_t>(rank)];
    EXPECT_EQ(settle(comm), ncclSuccess);
    int size = 0;
    EXPECT_DONE(ncclCommCount(comm, &size));
    EXPECT_EQ(size, 2);
    float values[3] = {1, 2, 0};
    ncclResult_t state = ncclAllReduce(&values[0], &values[0], 1, ncclFloat32, ncclSum, comm, nullptr);
    EXPECT_TRUE(state == ncclInProgress || state == ncclSuccess);
    EXPECT_EQ(settle(comm), ncclSuccess);
    EXPECT_EQ(values[0], 2);
    EXPECT_DONE(ncclGroupStart());
    EXPECT_DONE(ncclSend(&values[1], 1, ncclFloat32, 1 - rank, comm, nullptr));
    EXPECT_DONE(ncclRecv(&values[2], 1, ncclFloat32, 1 - rank, comm, nullptr));
    EXPECT_DONE(ncclAllReduce(&values[0], &values[0], 1, ncclFloat32, ncclSum, comm, nullptr));
    state = ncclGroupEnd();
    EXPECT_TRUE(state == ncclInProgress || state == ncclSuccess);
    EXPECT_EQ(settle(comm), ncclSuccess);
    EXPECT_EQ(values[0], 4);
    EXPECT_EQ(values[2], 2);

    ncclComm_t child = nullptr;  // of the same kind
    EXPECT_EQ(ncclCommSplit(comm, 0, rank, &child, nullptr), ncclInProgress);
    EXPECT_EQ(settle(comm), ncclSuccess);
    EXPECT_EQ(settle(child), ncclSuccess);
    EXPECT_EQ(sum_of(3, child), 6);
    EXPECT_DONE(ncclCommFinalize(child));
    EXPECT_DONE(ncclCommDestroy(child));
    EXPECT_DONE(ncclCommFinalize(comm));
    EXPECT_NCCL(ncclAllReduce(values, values, 1, ncclFloat32, ncclSum, comm, nullptr), ncclInvalidUsage,
                HasSubstr("was finalized"));
    EXPECT_DONE(ncclCommDestroy(comm));
  });
}

TEST(Communicators, NonBlockingOneIsBusyUntilItIsDone) {
  ncclConfig_t config = new_config();
  config.blocking = 0;
  const std::vector<ncclComm_t> comms = init_two(config);
  for (const ncclComm_t comm : comms) EXPECT_EQ(settle(comm), ncclSuccess);
  float x = 1;
  float y = 1;
  // Rank 0 cannot be done before rank 1 has called.
  EXPECT_EQ(ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, comms[0], nullptr), ncclInProgress);
  EXPECT_NCCL(ncclAllReduce(&y, &y, 1, ncclFloat32, ncclSum, comms[0], nullptr), ncclInvalidArgument,
              HasSubstr("ncclAllReduce: rank 0 is still busy with an earlier call"));
  EXPECT_EQ(ncclCommFinalize(comms[0]), ncclInProgress);
  (void)ncclAllReduce(&y, &y, 1, ncclFloat32, ncclSum, comms[1], nullptr);
  for (const ncclComm_t comm : comms) EXPECT_EQ(settle(comm), ncclSuccess);
  EXPECT_EQ(x, 2);
  EXPECT_EQ(y, 2);
  for (const ncclComm_t comm : comms) EXPECT_DONE(ncclCommDestroy(comm));
}

TEST(Communicators, NonBlockingFailuresAreAsynchronous) {
  ncclConfig_t config = new_config();
  config.blocking = 0;
  const std::vector<ncclComm_t> comms = init_two(config);
  for (const ncclComm_t comm : comms) EXPECT_EQ(settle(comm), ncclSuccess);
  float x[4] = {};
  for (std::size_t r = 0; r < 2; ++r) {
    (void)ncclAllReduce(&x[2 * r], &x[2 * r], 1 + r, ncclFloat32, ncclSum, comms[r], nullptr);
  }
  for (const ncclComm_t comm : comms) {
    EXPECT_EQ(settle(comm), ncclInvalidUsage);
    EXPECT_THAT(ncclGetLastError(comm), AllOf(HasSubstr("1 x f32"), HasSubstr("2 x f32")));
    EXPECT_DONE(ncclCommAbort(comm));
  }
}

TEST(Communicators, BlockingAndNonBlockingDoNotMix) {
  ncclConfig_t config = new_config();
  config.blocking = 0;
  const std::vector<ncclComm_t> soft = init_two(config);
  const std::vector<ncclComm_t> hard = init_all(1);
  for (const ncclComm_t comm : soft) EXPECT_EQ(settle(comm), ncclSuccess);
  float x = 1;
  EXPECT_DONE(ncclGroupStart());
  EXPECT_DONE(ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, soft[0], nullptr));
  EXPECT_DONE(ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, hard[0], nullptr));
  EXPECT_NCCL(ncclGroupEnd(), ncclInvalidArgument, HasSubstr("blocking and on non-blocking"));
  for (const ncclComm_t comm : {soft[0], soft[1], hard[0]}) EXPECT_DONE(ncclCommDestroy(comm));
}

TEST(Communicators, ManyInOneGroup) {
  ncclUniqueId ids[2];
  ncclComm_t comms[2][3];
  for (auto& id : ids) EXPECT_DONE(ncclGetUniqueId(&id));
  EXPECT_DONE(ncclGroupStart());  // two communicators of three ranks each, all by this thread
  for (int c = 0; c < 2; ++c) {
    for (int r = 0; r < 3; ++r) EXPECT_DONE(ncclCommInitRank(&comms[c][r], 3, ids[c], r));
  }
  EXPECT_DONE(ncclGroupEnd());
  float values[2][3] = {{1, 2, 3}, {10, 20, 30}};
  EXPECT_DONE(ncclGroupStart());
  for (int c = 0; c < 2; ++c) {
    for (int r = 0; r < 3; ++r) {
      EXPECT_DONE(ncclAllReduce(&values[c][r], &values[c][r], 1, ncclFloat32, ncclSum, comms[c][r], nullptr));
    }
  }
  EXPECT_DONE(ncclGroupEnd());
  for (int r = 0; r < 3; ++r) {
    EXPECT_EQ(values[0][r], 6);
    EXPECT_EQ(values[1][r], 60);
    for (int c = 0; c < 2; ++c) EXPECT_DONE(ncclCommDestroy(comms[c][r]));
  }
}

TEST(Communicators, ByMoreThanOneId) {
  ncclUniqueId ids[2];
  for (auto& id : ids) EXPECT_DONE(ncclGetUniqueId(&id));
  on_threads(2, [&](int rank) {
    ncclComm_t comm = nullptr;
    EXPECT_DONE(ncclCommInitRankScalable(&comm, 2, rank, 2, ids, nullptr));
    EXPECT_EQ(sum_of(1, comm), 2);
    EXPECT_DONE(ncclCommDestroy(comm));
  });
  ncclComm_t comm = nullptr;
  EXPECT_NCCL(ncclCommInitRankScalable(&comm, 2, 0, 0, ids, nullptr), ncclInvalidArgument, HasSubstr("nId is 0"));
  EXPECT_NCCL(ncclCommInitRankScalable(&comm, 1, 0, 1, nullptr, nullptr), ncclInvalidArgument,
              HasSubstr("commIds is null"));
}

TEST(Communicators, SplitTwiceInOneGroup) {
  const std::vector<ncclComm_t> comms = init_all(2);
  ncclComm_t pair[2];
  ncclComm_t alone[2];
  EXPECT_DONE(ncclGroupStart());
  for (std::size_t r = 0; r < 2; ++r) {
    EXPECT_DONE(ncclCommSplit(comms[r], 1, 0, &pair[r], nullptr));
    EXPECT_DONE(ncclCommSplit(comms[r], static_cast<int>(r), 0, &alone[r], nullptr));
  }
  EXPECT_DONE(ncclGroupEnd());
  on_threads(2, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    EXPECT_EQ(sum_of(1, pair[r]), 2);
    EXPECT_EQ(sum_of(1, alone[r]), 1);
    for (const ncclComm_t comm : {pair[r], alone[r], comms[r]}) EXPECT_DONE(ncclCommDestroy(comm));
  });
}

TEST(Communicators, SplitTakesTheNameOfItsConfiguration) {
  const std::vector<ncclComm_t> comms = init_all(4);
  ncclComm_t pair[4];
  ncclConfig_t config = new_config();
  config.commName = "tensor\nparallel";  // Tutti's names are printable
  EXPECT_DONE(ncclGroupStart());
  for (std::size_t r = 0; r < 4; ++r) {
    EXPECT_DONE(ncclCommSplit(comms[r], static_cast<int>(r) / 2, 0, &pair[r], &config));
  }
  EXPECT_DONE(ncclGroupEnd());
  EXPECT_DONE(ncclCommAbort(pair[3]));
  float x = 0;
  EXPECT_NCCL(ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, pair[2], nullptr), ncclRemoteError,
              HasSubstr("rank 1 of group 'tensor?parallel' (job rank 3, "));
  for (std::size_t r = 0; r < 3; ++r) EXPECT_DONE(ncclCommDestroy(pair[r]));
  for (const ncclComm_t comm : comms) EXPECT_DONE(ncclCommDestroy(comm));
}

TEST(Communicators, SplitAndShrinkCheckTheirArguments) {
  const std::vector<ncclComm_t> comms = init_all(2);
  ncclComm_t made = nullptr;
  int list[] = {0, 7};
  EXPECT_NCCL(ncclCommSplit(comms[0], -5, 0, &made, nullptr), ncclInvalidArgument, HasSubstr("color is -5"));
  EXPECT_NCCL(ncclCommSplit(comms[0], 0, 0, nullptr, nullptr), ncclInvalidArgument, HasSubstr("newcomm is null"));
  EXPECT_NCCL(ncclCommShrink(comms[0], list, 1, &made, nullptr, 0), ncclInvalidArgument, HasSubstr("is itself in"));
  EXPECT_NCCL(ncclCommShrink(comms[1], list, 2, &made, nullptr, 0), ncclInvalidArgument, HasSubstr("has 7"));
  EXPECT_NCCL(ncclCommShrink(comms[1], nullptr, 1, &made, nullptr, 0), ncclInvalidArgument,
              HasSubstr("the list is null"));
  EXPECT_NCCL(ncclCommShrink(comms[1], list, 1, &made, nullptr, 8), ncclInvalidArgument, HasSubstr("shrinkFlags is 8"));
  for (const ncclComm_t comm : comms) EXPECT_DONE(ncclCommDestroy(comm));
}

TEST(Communicators, MemoryAndRegistrations) {
  const std::vector<ncclComm_t> comms = init_all(1);
  void* memory = nullptr;
  void* handle = nullptr;
  EXPECT_DONE(ncclMemAlloc(&memory, 1000));
  EXPECT_NE(memory, nullptr);
  EXPECT_DONE(ncclCommRegister(comms[0], memory, 1000, &handle));
  EXPECT_NE(handle, nullptr);
  EXPECT_DONE(ncclCommDeregister(comms[0], handle));
  EXPECT_NCCL(ncclCommDeregister(comms[0], handle), ncclInvalidArgument, HasSubstr("ncclCommDeregister: rank 0"));
  EXPECT_NCCL(ncclCommRegister(comms[0], nullptr, 8, &handle), ncclInvalidArgument, HasSubstr("buff is null"));
  EXPECT_NCCL(ncclCommRegister(comms[0], memory, 0, &handle), ncclInvalidArgument, HasSubstr("size is 0"));
  EXPECT_DONE(ncclMemFree(memory));
  EXPECT_DONE(ncclMemFree(nullptr));
  EXPECT_DONE(ncclMemAlloc(&memory, 0));
  EXPECT_EQ(memory, nullptr);
  EXPECT_NCCL(ncclMemAlloc(nullptr, 8), ncclInvalidArgument, HasSubstr("ptr is null"));
  EXPECT_DONE(ncclCommDestroy(comms[0]));
}

TEST(Communicators, TeamsOfTheDeviceInterface) {
  const std::vector<ncclComm_t> comms = init_all(3);
  const ncclTeam_t world = ncclTeamWorld(comms[2]);
  EXPECT_EQ(world.nRanks, 3);
  EXPECT_EQ(world.rank, 2);
  EXPECT_EQ(ncclTeamLsa(comms[2]).nRanks, 1);
  EXPECT_EQ(ncclTeamRail(comms[2]).nRanks, 3);
  EXPECT_EQ(ncclTeamRankToWorld(comms[2], world, 1), 1);
  EXPECT_EQ(ncclTeamRankToWorld(comms[2], ncclTeamLsa(comms[2]), 0), 2);
  EXPECT_EQ(ncclTeamRankToLsa(comms[2], ncclTeamLsa(comms[2]), 0), 0);
  for (const ncclComm_t comm : comms) EXPECT_DONE(ncclCommDestroy(comm));
}

}  // namespace
}  // namespace tutti::nccl::testing::communicators_test
