// nccl/abi.h, which the library is compiled with, against NVIDIA's nccl.h: sizes, offsets, values, signatures. Most of
// it fails to compile rather than to pass.
#include <gtest/gtest.h>
#include <nccl.h>

#include <cstring>
#include <type_traits>

#define TUTTI_NCCL_TYPES_ONLY
#include "nccl/abi.h"

namespace ours = tutti::nccl;

// Signatures, as the list of functions has them, with NVIDIA's types of the same names.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#define SAME_SIGNATURE(result, name, parameters)                      \
  static_assert(std::is_same_v<decltype(::name), result parameters>); \
  static_assert(std::is_same_v<decltype(::p##name), result parameters>);
TUTTI_NCCL_FUNCTIONS(SAME_SIGNATURE)
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
SAME_TYPE(ncclConfig_t)
SAME_TYPE(ncclSimInfo_t)
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
SAME_VALUE(ncclNumResults)
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

static_assert(NCCL_VERSION_CODE == ours::kVersionCode);
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

namespace {

TEST(Abi, InitializersAreUnderstood) {
  const ::ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ours::ncclConfig_t read;
  std::memcpy(&read, &config, sizeof read);
  EXPECT_EQ(read.size, sizeof read);
  EXPECT_EQ(read.magic, ours::kConfigMagic);
  EXPECT_EQ(read.blocking, ours::kUndefinedInt);
  EXPECT_EQ(read.nvlinkCentricSched, ours::kUndefinedInt);
  EXPECT_EQ(read.netName, nullptr);
  EXPECT_EQ(read.commName, nullptr);
  const ::ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  EXPECT_EQ(info.magic, ours::kSimInfoMagic);
}

TEST(Abi, VersionIsTheHeaders) {
  int version = 0;
  EXPECT_EQ(ncclGetVersion(&version), ::ncclSuccess);
  EXPECT_EQ(version, NCCL_VERSION_CODE);
}

}  // namespace
