// What goes wrong, as ncclResult_t and as the sentence of ncclGetLastError.
#include <gmock/gmock.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/nccl/ranks.h"

namespace tutti::nccl::testing::errors_test {
namespace {

TEST(Errors, ArgumentsAreNamedAndHarmNothing) {
  const std::vector<ncclComm_t> comms = init_all(2);
  const ncclComm_t comm = comms[0];
  float x = 1;
  EXPECT_NCCL(ncclSend(&x, 1, ncclFloat32, 5, comm, nullptr), ncclInvalidArgument,
              HasSubstr("ncclSend: rank 0: peer is 5; expected 0 to 1"));
  EXPECT_NCCL(ncclRecv(&x, 1, ncclFloat32, -1, comm, nullptr), ncclInvalidArgument,
              HasSubstr("ncclRecv: rank 0: peer"));
  EXPECT_NCCL(ncclBroadcast(&x, &x, 1, ncclFloat32, 2, comm, nullptr), ncclInvalidArgument,
              HasSubstr("ncclBroadcast: rank 0: root is 2; expected 0 to 1"));
  EXPECT_NCCL(ncclAllReduce(nullptr, &x, 3, ncclFloat32, ncclSum, comm, nullptr), ncclInvalidArgument,
              HasSubstr("ncclAllReduce: rank 0: sendbuff is null; expected 3 elements"));
  EXPECT_NCCL(ncclAllGather(&x, nullptr, 3, ncclFloat32, comm, nullptr), ncclInvalidArgument,
              HasSubstr("ncclAllGather: rank 0: recvbuff is null"));
  EXPECT_NCCL(ncclAllReduce(&x, &x, 1, static_cast<ncclDataType_t>(12), ncclSum, comm, nullptr), ncclInvalidArgument,
              HasSubstr("datatype is 12; expected 0 to 11"));
  EXPECT_NCCL(ncclAllReduce(&x, &x, 1, ncclFloat32, static_cast<ncclRedOp_t>(77), comm, nullptr), ncclInvalidArgument,
              HasSubstr("op is 0x4d; expected 0 to 4"));
  EXPECT_NCCL(ncclAllReduce(&x, &x, SIZE_MAX, ncclFloat32, ncclSum, comm, nullptr), ncclInvalidArgument,
              HasSubstr("count is 18446744073709551615; at most"));
  EXPECT_NCCL(ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, nullptr, nullptr), ncclInvalidArgument,
              HasSubstr("ncclAllReduce: comm is null"));
  EXPECT_NCCL(ncclCommCount(comm, nullptr), ncclInvalidArgument, HasSubstr("ncclCommCount: count is null"));
  EXPECT_NCCL(ncclCommInitAll(nullptr, 2, nullptr), ncclInvalidArgument, HasSubstr("ncclCommInitAll: comm is null"));
  ncclComm_t none = nullptr;
  EXPECT_NCCL(ncclCommInitRank(&none, 2, {}, 2), ncclInvalidArgument, HasSubstr("rank is 2 of 2"));
  EXPECT_NCCL(ncclCommInitRank(&none, 2, {}, 0), ncclInvalidArgument, HasSubstr("ncclCommInitRank: "));
  EXPECT_EQ(none, nullptr);
  on_threads(2, [&](int rank) { EXPECT_EQ(sum_of(1, comms[static_cast<std::size_t>(rank)]), 2); });
  for (const ncclComm_t each : comms) EXPECT_DONE(ncclCommDestroy(each));
}

TEST(Errors, AMismatchNamesBothCalls) {
  const std::vector<ncclComm_t> comms = init_all(2);
  on_threads(2, [&](int rank) {
    const ncclComm_t comm = comms[static_cast<std::size_t>(rank)];
    std::vector<float> data(256);
    const auto call = [&] {
      return rank == 0 ? ncclAllReduce(data.data(), data.data(), 128, ncclFloat32, ncclSum, comm, nullptr)
                       : ncclAllGather(data.data(), data.data() + 100, 64, ncclFloat32, comm, nullptr);
    };
    const auto both = AllOf(HasSubstr("all_reduce(128 x f32"), HasSubstr("all_gather(64 x f32"));
    EXPECT_NCCL(call(), ncclInvalidUsage, both);
    EXPECT_NCCL(call(), ncclInvalidUsage, both);  // it is finished
    ncclResult_t state = ncclSuccess;
    EXPECT_DONE(ncclCommGetAsyncError(comm, &state));
    EXPECT_EQ(state, ncclInvalidUsage);
    EXPECT_THAT(ncclGetLastError(comm), both);
    EXPECT_DONE(ncclCommDestroy(comm));
  });
}

TEST(Errors, AMismatchInOneThreadsGroup) {
  const std::vector<ncclComm_t> comms = init_all(3);
  std::vector<float> data(300);
  EXPECT_DONE(ncclGroupStart());
  for (std::size_t r = 0; r < 3; ++r) {
    EXPECT_DONE(
        ncclAllReduce(&data[r * 100], &data[r * 100], r == 1 ? 50 : 100, ncclFloat32, ncclSum, comms[r], nullptr));
  }
  EXPECT_NCCL(ncclGroupEnd(), ncclInvalidUsage, HasSubstr("50 x f32"), HasSubstr("100 x f32"));
  for (const ncclComm_t comm : comms) EXPECT_DONE(ncclCommAbort(comm));
}

TEST(Errors, AWrongCallEndsItsGroupAndRunsNothing) {
  const std::vector<ncclComm_t> comms = init_all(2);
  float values[2] = {1, 2};
  EXPECT_DONE(ncclGroupStart());
  for (std::size_t r = 0; r < 2; ++r) {
    EXPECT_DONE(ncclAllReduce(&values[r], &values[r], 1, ncclFloat32, ncclSum, comms[r], nullptr));
  }
  EXPECT_NCCL(ncclReduce(&values[0], &values[0], 1, ncclFloat32, ncclSum, 9, comms[0], nullptr), ncclInvalidArgument,
              HasSubstr("root is 9"));
  EXPECT_NCCL(ncclGroupEnd(), ncclInvalidArgument, HasSubstr("ncclReduce: rank 0: root is 9"));
  EXPECT_EQ(values[0], 1);
  EXPECT_EQ(values[1], 2);
  EXPECT_DONE(ncclGroupStart());
  for (std::size_t r = 0; r < 2; ++r) {
    EXPECT_DONE(ncclAllReduce(&values[r], &values[r], 1, ncclFloat32, ncclSum, comms[r], nullptr));
  }
  EXPECT_DONE(ncclGroupEnd());
  EXPECT_EQ(values[0], 3);
  EXPECT_EQ(values[1], 3);
  for (const ncclComm_t comm : comms) EXPECT_DONE(ncclCommDestroy(comm));
}

TEST(Errors, GroupsThatCannotBe) {
  EXPECT_NCCL(ncclGroupEnd(), ncclInvalidUsage, HasSubstr("ncclGroupEnd: no group is open"));
  EXPECT_NCCL(ncclGroupSimulateEnd(nullptr), ncclInvalidUsage, HasSubstr("ncclGroupSimulateEnd: no group is open"));
  const std::vector<ncclComm_t> comms = init_all(1);
  float x = 5;
  float y = 0;
  EXPECT_DONE(ncclGroupStart());
  EXPECT_DONE(ncclAllReduce(&x, &y, 1, ncclFloat32, ncclSum, comms[0], nullptr));
  EXPECT_NCCL(ncclCommDestroy(comms[0]), ncclInvalidUsage, HasSubstr("calls in the group that is open"));
  EXPECT_NCCL(ncclGroupSimulateEnd(nullptr), ncclInvalidUsage, HasSubstr("ncclGroupSimulateEnd"),
              HasSubstr("no times"));
  EXPECT_EQ(y, 0);                                                       // it ran nothing
  EXPECT_NCCL(ncclGroupEnd(), ncclInvalidUsage, HasSubstr("no group"));  // and the group is over
  EXPECT_DONE(ncclCommDestroy(comms[0]));
}

TEST(Errors, AbortEndsWhatOthersWaitFor) {
  const std::vector<ncclComm_t> comms = init_all(2);
  on_threads(2, [&](int rank) {
    const ncclComm_t comm = comms[static_cast<std::size_t>(rank)];
    float x = 1;
    if (rank == 1) {
      EXPECT_DONE(ncclCommAbort(comm));
      EXPECT_NCCL(ncclCommAbort(comm), ncclInvalidArgument, HasSubstr("has been destroyed"));
    } else {
      EXPECT_NCCL(ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, comm, nullptr), ncclRemoteError,
                  HasSubstr("ncclAllReduce: "), HasSubstr("rank 1"), HasSubstr("ncclCommAbort"));
      EXPECT_DONE(ncclCommDestroy(comm));
    }
  });
}

TEST(Errors, AClosedHandleIsRecognised) {
  const std::vector<ncclComm_t> comms = init_all(1);
  EXPECT_DONE(ncclCommDestroy(comms[0]));
  EXPECT_NCCL(ncclCommDestroy(comms[0]), ncclInvalidArgument, HasSubstr("has been destroyed"));
  int count = 0;
  EXPECT_NCCL(ncclCommCount(comms[0], &count), ncclInvalidArgument, HasSubstr("has been destroyed"));
  alignas(64) char stranger[256] = {};
  EXPECT_NCCL(ncclCommCount(reinterpret_cast<ncclComm_t>(stranger), &count), ncclInvalidArgument,
              HasSubstr("is no communicator"));
  EXPECT_DONE(ncclCommDestroy(nullptr));  // as NCCL
}

TEST(Errors, WhatIsNotServedSaysSo) {
  const std::vector<ncclComm_t> comms = init_all(1);
  const ncclComm_t comm = comms[0];
  char buffer[64];
  ncclWindow_t window = nullptr;
  EXPECT_NCCL(ncclCommWindowRegister(comm, buffer, sizeof buffer, &window, 0), ncclInvalidUsage,
              HasSubstr("ncclCommWindowRegister: not served"));
  EXPECT_NCCL(ncclCommWindowDeregister(comm, window), ncclInvalidUsage,
              HasSubstr("ncclCommWindowDeregister: not served"));
  void* pointer = nullptr;
  EXPECT_NCCL(ncclWinGetUserPtr(comm, window, &pointer), ncclInvalidUsage, HasSubstr("ncclWinGetUserPtr: not served"));
  EXPECT_NCCL(ncclPutSignal(buffer, 1, ncclInt8, 0, window, 0, 0, 0, 0, comm, nullptr), ncclInvalidUsage,
              HasSubstr("ncclPutSignal: not served by this library: it has no one-sided communication"));
  EXPECT_NCCL(ncclSignal(0, 0, 0, 0, comm, nullptr), ncclInvalidUsage, HasSubstr("ncclSignal: not served"));
  EXPECT_NCCL(ncclWaitSignal(0, nullptr, comm, nullptr), ncclInvalidUsage, HasSubstr("ncclWaitSignal: not served"));
  EXPECT_NCCL(ncclGetPeerDevicePointer(window, 0, 0, &pointer), ncclInvalidUsage,
              HasSubstr("ncclGetPeerDevicePointer: not served"));
  EXPECT_NCCL(ncclDevCommCreate(comm, nullptr, nullptr), ncclInvalidUsage, HasSubstr("ncclDevCommCreate: not served"));
  EXPECT_NCCL(ncclDevCommDestroy(comm, nullptr), ncclInvalidUsage, HasSubstr("ncclDevCommDestroy: not served"));
  EXPECT_NCCL(ncclLLA2ACreateRequirement(1, 1, nullptr, nullptr), ncclInvalidUsage, HasSubstr("ncclLLA2A"));
  EXPECT_NCCL(ncclLsaBarrierCreateRequirement({1, 0, 1}, 1, nullptr, nullptr), ncclInvalidUsage, HasSubstr("ncclLsa"));
  EXPECT_NCCL(ncclGinBarrierCreateRequirement(comm, {1, 0, 1}, 1, nullptr, nullptr), ncclInvalidUsage,
              HasSubstr("ncclGin"));
  EXPECT_DONE(ncclCommDestroy(comm));
}

TEST(Errors, EncryptionIsRefusedAndItsAbsenceIsNot) {
  ncclEncryptionConfig_t config{sizeof config, kApiMagic, kVersionCode, kEncryptionNone, nullptr};
  EXPECT_DONE(ncclSetEncryption(&config));
  config.mode = kEncryptionPsk;
  EXPECT_NCCL(ncclSetEncryption(&config), ncclInvalidUsage, HasSubstr("ncclSetEncryption: not served"));
  config.mode = 7;
  EXPECT_NCCL(ncclSetEncryption(&config), ncclInvalidArgument, HasSubstr("mode is 7"));
  config.magic = 0;
  EXPECT_NCCL(ncclSetEncryption(&config), ncclInvalidArgument, HasSubstr("NCCL_ENCRYPTION_CONFIG_INITIALIZER"));
  EXPECT_NCCL(ncclSetEncryption(nullptr), ncclInvalidArgument, HasSubstr("config is null"));
}

TEST(Errors, GrowingAndMemoryCheckTheirArguments) {
  const std::vector<ncclComm_t> comms = init_all(2);
  const ncclComm_t comm = comms[0];
  ncclComm_t made = nullptr;
  ncclUniqueId id{};
  EXPECT_NCCL(ncclCommGrow(comm, 2, nullptr, -1, &made, nullptr), ncclInvalidArgument,
              HasSubstr("ncclCommGrow: rank 0: nRanks is 2 and the communicator has 2; expected more"));
  EXPECT_NCCL(ncclCommGrow(comm, 3, nullptr, 0, &made, nullptr), ncclInvalidArgument,
              HasSubstr("rank is 0; expected -1"));
  EXPECT_NCCL(ncclCommGrow(comm, 3, nullptr, -1, nullptr, nullptr), ncclInvalidArgument, HasSubstr("newcomm is null"));
  EXPECT_NCCL(ncclCommGrow(nullptr, 3, nullptr, 2, &made, nullptr), ncclInvalidArgument, HasSubstr("uniqueId is null"));
  EXPECT_NCCL(ncclCommGrow(nullptr, 3, &id, 3, &made, nullptr), ncclInvalidArgument, HasSubstr("rank is 3 of 3"));
  EXPECT_NCCL(ncclCommGetUniqueId(comm, nullptr), ncclInvalidArgument, HasSubstr("uniqueId is null"));
  EXPECT_NCCL(ncclCommGetUniqueId(nullptr, &id), ncclInvalidArgument, HasSubstr("comm is null"));
  std::uint64_t bytes = 0;
  EXPECT_NCCL(ncclCommMemStats(comm, static_cast<ncclCommMemStat_t>(4), &bytes), ncclInvalidArgument,
              HasSubstr("stat is 4; expected 0 to 3"));
  EXPECT_NCCL(ncclCommMemStats(comm, ncclStatGpuMemTotal, nullptr), ncclInvalidArgument, HasSubstr("value is null"));
  EXPECT_NCCL(ncclCommSuspend(comm, 2), ncclInvalidArgument, HasSubstr("flags is 2; expected NCCL_SUSPEND_MEM"));
  EXPECT_NCCL(ncclCommResume(comm), ncclInvalidUsage, HasSubstr("the communicator is not suspended"));
  for (const ncclComm_t each : comms) EXPECT_DONE(ncclCommDestroy(each));
}

TEST(Errors, OperatorsBelongToTheirCommunicatorAndType) {
  const std::vector<ncclComm_t> comms = init_all(2);
  float factor = 2;
  ncclRedOp_t op{};
  float x = 1;
  EXPECT_DONE(ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat32, ncclScalarHostImmediate, comms[0]));
  EXPECT_NCCL(ncclAllReduce(&x, &x, 1, ncclFloat32, op, comms[1], nullptr), ncclInvalidArgument,
              HasSubstr("ncclAllReduce: rank 1: op is"));
  EXPECT_NCCL(ncclAllReduce(&x, &x, 1, ncclFloat16, op, comms[0], nullptr), ncclInvalidArgument,
              HasSubstr("op was made for f32 and the datatype is f16"));
  EXPECT_NCCL(ncclRedOpDestroy(op, comms[1]), ncclInvalidArgument, HasSubstr("ncclRedOpDestroy: rank 1: op is"));
  EXPECT_DONE(ncclRedOpDestroy(op, comms[0]));
  EXPECT_NCCL(ncclRedOpDestroy(op, comms[0]), ncclInvalidArgument, HasSubstr("ncclRedOpDestroy"));
  EXPECT_NCCL(ncclRedOpDestroy(ncclSum, comms[0]), ncclInvalidArgument, HasSubstr("ncclRedOpDestroy"));
  std::int64_t wide = (std::int64_t{1} << 53) + 1;
  EXPECT_NCCL(ncclRedOpCreatePreMulSum(&op, &wide, ncclInt64, ncclScalarHostImmediate, comms[0]), ncclInvalidArgument,
              HasSubstr("an integer that a double does not hold"));
  EXPECT_NCCL(ncclRedOpCreatePreMulSum(&op, nullptr, ncclInt64, ncclScalarDevice, comms[0]), ncclInvalidArgument,
              HasSubstr("scalar is null"));
  for (const ncclComm_t comm : comms) EXPECT_DONE(ncclCommDestroy(comm));
}

}  // namespace
}  // namespace tutti::nccl::testing::errors_test
