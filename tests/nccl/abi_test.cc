// nccl/abi.h, which the library is compiled with, against NVIDIA's nccl.h of each version that we keep: sizes, offsets,
// values, signatures. Most of it fails to compile rather than to pass.
#define NCCL_OS_LINUX  // else 2.32 declares no ncclResetDebugInit
#include <gtest/gtest.h>
#include <nccl.h>

#include <cstring>
#include <type_traits>

#define IS_2_32 (NCCL_VERSION_CODE >= NCCL_VERSION(2, 32, 0))
#if IS_2_32
#include <nccl_device/host.h>
#endif

#define TUTTI_NCCL_TYPES_ONLY
#include "nccl/abi.h"

namespace ours = tutti::nccl;

// Signatures, as the list of functions has them, with NVIDIA's types of the same names.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#define SAME_SIGNATURE(result, name, parameters)                      \
  static_assert(std::is_same_v<decltype(::name), result parameters>); \
  static_assert(std::is_same_v<decltype(::p##name), result parameters>);
TUTTI_NCCL_FUNCTIONS_2_28(SAME_SIGNATURE)
#pragma GCC diagnostic pop

#define SAME_TYPE(type)                                  \
  static_assert(sizeof(::type) == sizeof(ours::type));   \
  static_assert(alignof(::type) == alignof(ours::type)); \
  static_assert(std::is_enum_v<::type> == std::is_enum_v<ours::type>);
#define SAME_VALUE(name) static_assert(static_cast<long long>(::name) == static_cast<long long>(ours::name));
#define SAME_FIELD(type, field)                                          \
  static_assert(offsetof(::type, field) == offsetof(ours::type, field)); \
  static_assert(std::is_same_v<decltype(::type::field), decltype(ours::type::field)>);

SAME_TYPE(ncclUniqueId)
SAME_TYPE(ncclResult_t)
SAME_TYPE(ncclRedOp_t)
SAME_TYPE(ncclDataType_t)
SAME_TYPE(ncclScalarResidence_t)
SAME_TYPE(ncclSimInfo_t)
static_assert(IS_2_32 ? sizeof(::ncclConfig_t) == sizeof(ours::ncclConfig_t)
                      : sizeof(::ncclConfig_t) < sizeof(ours::ncclConfig_t));
static_assert(std::is_same_v<std::underlying_type_t<::ncclRedOp_t>, std::underlying_type_t<ours::ncclRedOp_t>>);
static_assert(std::is_trivially_copyable_v<ours::ncclUniqueId>, "passed by value as C does");

SAME_VALUE(ncclSuccess)
SAME_VALUE(ncclUnhandledCudaError)
SAME_VALUE(ncclSystemError)
SAME_VALUE(ncclInternalError)
SAME_VALUE(ncclInvalidArgument)
SAME_VALUE(ncclInvalidUsage)
SAME_VALUE(ncclRemoteError)
SAME_VALUE(ncclInProgress)
SAME_VALUE(ncclSum)
SAME_VALUE(ncclProd)
SAME_VALUE(ncclMax)
SAME_VALUE(ncclMin)
SAME_VALUE(ncclAvg)
SAME_VALUE(ncclNumOps)
SAME_VALUE(ncclMaxRedOp)
SAME_VALUE(ncclInt8)
SAME_VALUE(ncclUint8)
SAME_VALUE(ncclInt32)
SAME_VALUE(ncclUint32)
SAME_VALUE(ncclInt64)
SAME_VALUE(ncclUint64)
SAME_VALUE(ncclFloat16)
SAME_VALUE(ncclFloat32)
SAME_VALUE(ncclFloat64)
SAME_VALUE(ncclBfloat16)
SAME_VALUE(ncclFloat8e4m3)
SAME_VALUE(ncclFloat8e5m2)
SAME_VALUE(ncclNumTypes)
SAME_VALUE(ncclScalarDevice)
SAME_VALUE(ncclScalarHostImmediate)

static_assert(NCCL_VERSION_CODE <= ours::kVersionCode);
static_assert(NCCL_CONFIG_UNDEF_INT == ours::kUndefinedInt);
static_assert(NCCL_UNDEF_FLOAT == ours::kUndefinedFloat);
static_assert(NCCL_SPLIT_NOCOLOR == ours::kSplitNoColor);
static_assert(NCCL_SHRINK_DEFAULT == ours::kShrinkDefault);
static_assert(NCCL_SHRINK_ABORT == ours::kShrinkAbort);
static_assert(NCCL_REVOKE_DEFAULT == ours::kRevokeDefault);
static_assert(NCCL_UNIQUE_ID_BYTES == sizeof(ours::ncclUniqueId::internal));

SAME_FIELD(ncclConfig_t, size)
SAME_FIELD(ncclConfig_t, magic)
SAME_FIELD(ncclConfig_t, version)
SAME_FIELD(ncclConfig_t, blocking)
SAME_FIELD(ncclConfig_t, cgaClusterSize)
SAME_FIELD(ncclConfig_t, minCTAs)
SAME_FIELD(ncclConfig_t, maxCTAs)
SAME_FIELD(ncclConfig_t, netName)
SAME_FIELD(ncclConfig_t, splitShare)
SAME_FIELD(ncclConfig_t, trafficClass)
SAME_FIELD(ncclConfig_t, commName)
SAME_FIELD(ncclConfig_t, collnetEnable)
SAME_FIELD(ncclConfig_t, CTAPolicy)
SAME_FIELD(ncclConfig_t, shrinkShare)
SAME_FIELD(ncclConfig_t, nvlsCTAs)
SAME_FIELD(ncclConfig_t, nChannelsPerNetPeer)
SAME_FIELD(ncclConfig_t, nvlinkCentricSched)
SAME_FIELD(ncclSimInfo_t, size)
SAME_FIELD(ncclSimInfo_t, magic)
SAME_FIELD(ncclSimInfo_t, version)
SAME_FIELD(ncclSimInfo_t, estimatedTime)

#if IS_2_32

static_assert(NCCL_VERSION_CODE == ours::kVersionCode);
TUTTI_NCCL_FUNCTIONS_2_32(SAME_SIGNATURE)
#define SAME_ONE_SIGNATURE(result, name, parameters) static_assert(std::is_same_v<decltype(::name), result parameters>);
TUTTI_NCCL_DEVICE_FUNCTIONS_2_28(SAME_ONE_SIGNATURE)
TUTTI_NCCL_DEVICE_FUNCTIONS_2_32(SAME_ONE_SIGNATURE)

SAME_TYPE(ncclConfigExt_t)
SAME_TYPE(ncclCollConfig_t)
SAME_TYPE(ncclEncryptionConfig_t)
SAME_TYPE(ncclCommMemStat_t)
SAME_TYPE(ncclWaitSignalDesc_t)
SAME_TYPE(ncclTeam_t)
SAME_TYPE(ncclMultimemHandle_t)
SAME_TYPE(ncclCommProperties_t)

SAME_VALUE(ncclTimeout)
SAME_VALUE(ncclNumResults)
SAME_VALUE(ncclStatGpuMemSuspend)
SAME_VALUE(ncclStatGpuMemSuspended)
SAME_VALUE(ncclStatGpuMemPersist)
SAME_VALUE(ncclStatGpuMemTotal)
static_assert(NCCL_API_MAGIC == ours::kApiMagic);
static_assert(NCCL_SUSPEND_MEM == ours::kSuspendMemory);
static_assert(NCCL_ENCRYPTION_MODE_NONE == ours::kEncryptionNone);
static_assert(NCCL_ENCRYPTION_MODE_PSK == ours::kEncryptionPsk);
static_assert(NCCL_GIN_TYPE_NONE == static_cast<int>(ours::NCCL_GIN_TYPE_NONE));
static_assert(NCCL_GIN_MAX_TYPES == static_cast<int>(ours::NCCL_GIN_MAX_TYPES));

SAME_FIELD(ncclConfig_t, graphUsageMode)
SAME_FIELD(ncclConfig_t, numRmaCtx)
SAME_FIELD(ncclConfig_t, maxP2pPeers)
SAME_FIELD(ncclConfig_t, graphStreamOrdering)
SAME_FIELD(ncclConfig_t, launchOrderImplicit)
SAME_FIELD(ncclConfig_t, numRmaSig)
SAME_FIELD(ncclConfig_t, rmaEagerInit)
SAME_FIELD(ncclConfig_t, hostCftMode)
SAME_FIELD(ncclConfig_t, nvlsHostMode)
#define SAME_OFFSET(type, field) static_assert(offsetof(::type, field) == offsetof(ours::type, field));
SAME_OFFSET(ncclConfigExt_t, key.optionId)
SAME_OFFSET(ncclConfigExt_t, val.raw)
SAME_OFFSET(ncclCollConfig_t, ext)
SAME_FIELD(ncclCollConfig_t, minCTAs)
SAME_FIELD(ncclCollConfig_t, algSelection)
SAME_FIELD(ncclCollConfig_t, forceAlgSelection)
SAME_FIELD(ncclCollConfig_t, CTAPolicy)
SAME_FIELD(ncclCollConfig_t, userProfilerTag)
SAME_OFFSET(ncclCollConfig_t, launchCompletionEvent)
SAME_FIELD(ncclEncryptionConfig_t, mode)
SAME_FIELD(ncclEncryptionConfig_t, psk)
SAME_FIELD(ncclWaitSignalDesc_t, ctx)
SAME_FIELD(ncclCommProperties_t, nRanks)
SAME_FIELD(ncclCommProperties_t, cudaDev)
SAME_FIELD(ncclCommProperties_t, nLsaTeams)
SAME_FIELD(ncclCommProperties_t, commHash)
SAME_FIELD(ncclCommProperties_t, ginSupport)
SAME_FIELD(ncclCommProperties_t, cftCountedSupport)

#endif

namespace {

TEST(Abi, InitializersAreUnderstood) {
  ::ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  EXPECT_EQ(config.magic, ours::kApiMagic);
  ::ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ::ncclSuccess);
  ncclComm_t comm = nullptr;
  ASSERT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ::ncclSuccess) << ncclGetLastError(nullptr);
  ASSERT_EQ(ncclGroupStart(), ::ncclSuccess);
  ::ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  EXPECT_EQ(ncclGroupSimulateEnd(&info), ::ncclInvalidUsage);  // not ncclInvalidArgument
  float x = 3;
#if IS_2_32
  ::ncclCollConfig_t call = NCCL_COLLCONFIG_INITIALIZER;
  EXPECT_EQ(ncclAllReduceConfig(&x, &x, 1, ::ncclFloat, ::ncclSum, comm, nullptr, &call), ::ncclSuccess)
      << ncclGetLastError(nullptr);
  ::ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
  EXPECT_EQ(ncclCommQueryProperties(comm, &properties), ::ncclSuccess) << ncclGetLastError(nullptr);
  EXPECT_EQ(properties.nRanks, 1);
  EXPECT_EQ(properties.size, sizeof properties);
  EXPECT_FALSE(properties.deviceApiSupport);
  ::ncclEncryptionConfig_t encryption = NCCL_ENCRYPTION_CONFIG_INITIALIZER;
  EXPECT_EQ(ncclSetEncryption(&encryption), ::ncclSuccess) << ncclGetLastError(nullptr);
#endif
  EXPECT_EQ(x, 3);
  EXPECT_EQ(ncclCommDestroy(comm), ::ncclSuccess);
}

TEST(Abi, VersionIsTheHeadersOrNewer) {
  int version = 0;
  EXPECT_EQ(ncclGetVersion(&version), ::ncclSuccess);
  EXPECT_GE(version, NCCL_VERSION_CODE);
}

}  // namespace
