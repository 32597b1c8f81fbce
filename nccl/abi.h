// NCCL's binary interface as of 2.32.3, written down anew: types with their sizes and values, and every function that
// the library exports. A program compiled with NVIDIA's nccl.h of any 2.x version up to that one meets the same here.
// The tests nccl.abi.* compare all of it with NVIDIA's own headers, and nccl.symbols the list of names.
//
// Each name exists twice: ncclX is a weak alias of pncclX, so that a profiler's library can put itself in between.
// Source: the user's guide of NCCL 2.32, "API", and the headers of the packages nvidia-nccl-cu13 2.28.9 and 2.32.3.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>

namespace tutti::nccl {

// What a program sees of these is a pointer.
struct ncclComm;
using ncclComm_t = ncclComm*;
struct ncclWindow_vidmem;
using ncclWindow_t = ncclWindow_vidmem*;
struct CUstream_st;
using cudaStream_t = CUstream_st*;
struct CUevent_st;
using cudaEvent_t = CUevent_st*;
struct ncclParamHandle;
using ncclParamHandle_t = ncclParamHandle*;

struct ncclUniqueId {
  char internal[128];
};

enum ncclResult_t {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
  ncclTimeout = 8,  // since 2.32; this library never gives it, which older programs do not know
  ncclNumResults = 9
};

enum ncclRedOp_t {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4,
  ncclNumOps = 5,  // values from here on are made by ncclRedOpCreate...
  ncclMaxRedOp = 0x7fffffff
};

enum ncclDataType_t {
  ncclInt8 = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9,
  ncclFloat8e4m3 = 10,
  ncclFloat8e5m2 = 11,
  ncclNumTypes = 12
};

enum ncclScalarResidence_t { ncclScalarDevice = 0, ncclScalarHostImmediate = 1 };

inline constexpr int kVersionCode = 23203;
inline constexpr int kUndefinedInt = INT_MIN;
inline constexpr float kUndefinedFloat = -1.0F;
inline constexpr unsigned kApiMagic = 0xcafebeef;
inline constexpr unsigned kSimInfoMagic = 0x74685283;
inline constexpr int kSplitNoColor = -1;
inline constexpr int kShrinkDefault = 0;
inline constexpr int kShrinkAbort = 1;
inline constexpr int kRevokeDefault = 0;
inline constexpr int kSuspendMemory = 1;
inline constexpr int kEncryptionNone = 0;
inline constexpr int kEncryptionPsk = 1;

// `size` and `version` of these structs are what the program's header knew. An older one ends earlier, a newer one goes
// on; NCCL only ever appends.

struct ncclConfig_t {
  std::size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
  int cgaClusterSize;
  int minCTAs;
  int maxCTAs;
  const char* netName;
  int splitShare;
  int trafficClass;
  const char* commName;
  int collnetEnable;
  int CTAPolicy;
  int shrinkShare;
  int nvlsCTAs;
  int nChannelsPerNetPeer;
  int nvlinkCentricSched;
  int graphUsageMode;
  int numRmaCtx;
  int maxP2pPeers;
  int graphStreamOrdering;
  int launchOrderImplicit;
  int numRmaSig;
  int rmaEagerInit;
  int hostCftMode;
  int nvlsHostMode;
};

/// An option of one vendor's library, in a list.
struct ncclConfigExt_t {
  ncclConfigExt_t* next;
  struct {
    int vendorId;
    int optionId;
  } key;
  union {
    int i;
    const char* s;
    void* raw;
  } val;
};

/// The settings of one call of a collective.
struct ncclCollConfig_t {
  std::size_t size;
  unsigned magic;
  unsigned version;
  ncclConfigExt_t* ext;
  int minCTAs;
  int maxCTAs;
  int nvlsCTAs;
  int cgaClusterSize;
  const char* algSelection;
  int forceAlgSelection;
  int CTAPolicy;
  std::uint64_t userProfilerTag;
  cudaEvent_t launchCompletionEvent;
};

struct ncclEncryptionConfig_t {
  std::size_t size;
  unsigned magic;
  unsigned version;
  int mode;
  const char* psk;
};

enum ncclCommMemStat_t {
  ncclStatGpuMemSuspend = 0,
  ncclStatGpuMemSuspended = 1,
  ncclStatGpuMemPersist = 2,
  ncclStatGpuMemTotal = 3
};

struct ncclWaitSignalDesc_t {
  int opCnt;
  int peer;
  int sigIdx;
  int ctx;
};

struct ncclSimInfo_t {
  std::size_t size;
  unsigned magic;
  unsigned version;
  float estimatedTime;
};

// Of the device interface (nccl_device.h), whose host functions are exported too.
struct ncclTeam_t {
  int nRanks;
  int rank;
  int stride;
};
struct ncclDevComm_t;
struct ncclDevCommRequirements_t;
struct ncclDevResourceRequirements_t;
struct ncclLsaBarrierHandle_t;
struct ncclGinBarrierHandle_t;
struct ncclCftBarrierHandle_t;
struct ncclLLA2AHandle_t;
struct ncclGinOutboxHandle;
struct ncclGinInboxA2AHandle;
using ncclCftLeId = std::uint32_t;
struct ncclMultimemHandle_t {
  void* mcBasePtr;
};
enum ncclGinType_t { NCCL_GIN_TYPE_NONE = 0, NCCL_GIN_MAX_TYPES = 6 };
enum ncclGinConnectionType_t { NCCL_GIN_CONNECTION_NONE = 0, NCCL_GIN_CONNECTION_CUSTOM_STRIDE = 3 };
enum ncclCftTeamMode_t { NCCL_CFT_TEAM_FLAT = 0, NCCL_CFT_TEAM_HIER_LSA = 2 };
struct ncclCommProperties_t {
  std::size_t size;
  unsigned magic;
  unsigned version;
  int rank;
  int nRanks;
  int cudaDev;
  int nvmlDev;
  bool deviceApiSupport;
  bool multimemSupport;
  ncclGinType_t ginType;
  int nLsaTeams;
  bool hostRmaSupport;
  ncclGinType_t railedGinType;
  std::uint64_t commHash;
  int ginMinStride;
  ncclGinConnectionType_t ginConnectionType;
  bool ginSupport[64];
  std::size_t devCommRuntimeVersionSize;
  bool cftSupport;
  bool cftMulticastSupport;
  bool cftCountedSupport;
};

}  // namespace tutti::nccl

// F(result type, name, (parameters)) for every function of nccl.h: those of 2.28, and what has come until 2.32.
#define TUTTI_NCCL_FUNCTIONS_2_28(F)                                                                                  \
  F(ncclResult_t, ncclMemAlloc, (void**, size_t))                                                                     \
  F(ncclResult_t, ncclMemFree, (void*))                                                                               \
  F(ncclResult_t, ncclGetVersion, (int*))                                                                             \
  F(ncclResult_t, ncclGetUniqueId, (ncclUniqueId*))                                                                   \
  F(ncclResult_t, ncclCommInitRankConfig, (ncclComm_t*, int, ncclUniqueId, int, ncclConfig_t*))                       \
  F(ncclResult_t, ncclCommInitRank, (ncclComm_t*, int, ncclUniqueId, int))                                            \
  F(ncclResult_t, ncclCommInitAll, (ncclComm_t*, int, const int*))                                                    \
  F(ncclResult_t, ncclCommFinalize, (ncclComm_t))                                                                     \
  F(ncclResult_t, ncclCommDestroy, (ncclComm_t))                                                                      \
  F(ncclResult_t, ncclCommAbort, (ncclComm_t))                                                                        \
  F(ncclResult_t, ncclCommRevoke, (ncclComm_t, int))                                                                  \
  F(ncclResult_t, ncclCommSplit, (ncclComm_t, int, int, ncclComm_t*, ncclConfig_t*))                                  \
  F(ncclResult_t, ncclCommShrink, (ncclComm_t, int*, int, ncclComm_t*, ncclConfig_t*, int))                           \
  F(ncclResult_t, ncclCommInitRankScalable, (ncclComm_t*, int, int, int, ncclUniqueId*, ncclConfig_t*))               \
  F(const char*, ncclGetErrorString, (ncclResult_t))                                                                  \
  F(const char*, ncclGetLastError, (ncclComm_t))                                                                      \
  F(void, ncclResetDebugInit, ())                                                                                     \
  F(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t, ncclResult_t*))                                                 \
  F(ncclResult_t, ncclCommCount, (const ncclComm_t, int*))                                                            \
  F(ncclResult_t, ncclCommCuDevice, (const ncclComm_t, int*))                                                         \
  F(ncclResult_t, ncclCommUserRank, (const ncclComm_t, int*))                                                         \
  F(ncclResult_t, ncclCommRegister, (const ncclComm_t, void*, size_t, void**))                                        \
  F(ncclResult_t, ncclCommDeregister, (const ncclComm_t, void*))                                                      \
  F(ncclResult_t, ncclCommWindowRegister, (ncclComm_t, void*, size_t, ncclWindow_t*, int))                            \
  F(ncclResult_t, ncclCommWindowDeregister, (ncclComm_t, ncclWindow_t))                                               \
  F(ncclResult_t, ncclRedOpCreatePreMulSum, (ncclRedOp_t*, void*, ncclDataType_t, ncclScalarResidence_t, ncclComm_t)) \
  F(ncclResult_t, ncclRedOpDestroy, (ncclRedOp_t, ncclComm_t))                                                        \
  F(ncclResult_t, ncclReduce,                                                                                         \
    (const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t, cudaStream_t))                         \
  F(ncclResult_t, ncclBcast, (void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))                          \
  F(ncclResult_t, ncclBroadcast, (const void*, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))         \
  F(ncclResult_t, ncclAllReduce, (const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t)) \
  F(ncclResult_t, ncclReduceScatter,                                                                                  \
    (const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t))                              \
  F(ncclResult_t, ncclAllGather, (const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t))              \
  F(ncclResult_t, ncclAlltoAll, (const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t))               \
  F(ncclResult_t, ncclGather, (const void*, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))            \
  F(ncclResult_t, ncclScatter, (const void*, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))           \
  F(ncclResult_t, ncclSend, (const void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))                     \
  F(ncclResult_t, ncclRecv, (void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))                           \
  F(ncclResult_t, ncclGroupStart, ())                                                                                 \
  F(ncclResult_t, ncclGroupEnd, ())                                                                                   \
  F(ncclResult_t, ncclGroupSimulateEnd, (ncclSimInfo_t*))

#define TUTTI_NCCL_FUNCTIONS_2_32(F)                                                                                   \
  F(ncclResult_t, ncclAllReduceConfig,                                                                                 \
    (const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t, const ncclCollConfig_t*))      \
  F(ncclResult_t, ncclBroadcastConfig,                                                                                 \
    (const void*, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t, const ncclCollConfig_t*))              \
  F(ncclResult_t, ncclReduceConfig,                                                                                    \
    (const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t, cudaStream_t, const ncclCollConfig_t*)) \
  F(ncclResult_t, ncclAllGatherConfig,                                                                                 \
    (const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t, const ncclCollConfig_t*))                   \
  F(ncclResult_t, ncclReduceScatterConfig,                                                                             \
    (const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t, const ncclCollConfig_t*))      \
  F(ncclResult_t, ncclAlltoAllConfig,                                                                                  \
    (const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t, const ncclCollConfig_t*))                   \
  F(ncclResult_t, ncclGatherConfig,                                                                                    \
    (const void*, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t, const ncclCollConfig_t*))              \
  F(ncclResult_t, ncclScatterConfig,                                                                                   \
    (const void*, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t, const ncclCollConfig_t*))              \
  F(ncclResult_t, ncclCommGetUniqueId, (ncclComm_t, ncclUniqueId*))                                                    \
  F(ncclResult_t, ncclCommGrow, (ncclComm_t, int, const ncclUniqueId*, int, ncclComm_t*, ncclConfig_t*))               \
  F(ncclResult_t, ncclCommSuspend, (ncclComm_t, int))                                                                  \
  F(ncclResult_t, ncclCommResume, (ncclComm_t))                                                                        \
  F(ncclResult_t, ncclCommMemStats, (ncclComm_t, ncclCommMemStat_t, uint64_t*))                                        \
  F(ncclResult_t, ncclWinGetUserPtr, (ncclComm_t, ncclWindow_t, void**))                                               \
  F(ncclResult_t, ncclPutSignal,                                                                                       \
    (const void*, size_t, ncclDataType_t, int, ncclWindow_t, size_t, int, int, unsigned, ncclComm_t, cudaStream_t))    \
  F(ncclResult_t, ncclSignal, (int, int, int, unsigned, ncclComm_t, cudaStream_t))                                     \
  F(ncclResult_t, ncclWaitSignal, (int, ncclWaitSignalDesc_t*, ncclComm_t, cudaStream_t))                              \
  F(ncclResult_t, ncclSetEncryption, (const ncclEncryptionConfig_t*))                                                  \
  F(ncclResult_t, ncclParamBind, (ncclParamHandle_t*, const char*))                                                    \
  F(ncclResult_t, ncclParamGetI8, (ncclParamHandle_t, int8_t*))                                                        \
  F(ncclResult_t, ncclParamGetI16, (ncclParamHandle_t, int16_t*))                                                      \
  F(ncclResult_t, ncclParamGetI32, (ncclParamHandle_t, int32_t*))                                                      \
  F(ncclResult_t, ncclParamGetI64, (ncclParamHandle_t, int64_t*))                                                      \
  F(ncclResult_t, ncclParamGetU8, (ncclParamHandle_t, uint8_t*))                                                       \
  F(ncclResult_t, ncclParamGetU16, (ncclParamHandle_t, uint16_t*))                                                     \
  F(ncclResult_t, ncclParamGetU32, (ncclParamHandle_t, uint32_t*))                                                     \
  F(ncclResult_t, ncclParamGetU64, (ncclParamHandle_t, uint64_t*))                                                     \
  F(ncclResult_t, ncclParamGetStr, (ncclParamHandle_t, const char**))                                                  \
  F(ncclResult_t, ncclParamGet, (ncclParamHandle_t, void*, int, int*))                                                 \
  F(ncclResult_t, ncclParamGetParameter, (const char*, const char**, int*))                                            \
  F(ncclResult_t, ncclParamGetAllParameterKeys, (const char***, int*))                                                 \
  F(void, ncclParamDumpAll, ())

#define TUTTI_NCCL_FUNCTIONS(F) TUTTI_NCCL_FUNCTIONS_2_28(F) TUTTI_NCCL_FUNCTIONS_2_32(F)

// The same for the host functions of nccl_device.h.
#define TUTTI_NCCL_DEVICE_FUNCTIONS_2_28(F)                                                          \
  F(ncclResult_t, ncclDevCommCreate, (ncclComm_t, const ncclDevCommRequirements_t*, ncclDevComm_t*)) \
  F(ncclResult_t, ncclDevCommDestroy, (ncclComm_t, const ncclDevComm_t*))                            \
  F(ncclTeam_t, ncclTeamWorld, (ncclComm_t))                                                         \
  F(ncclTeam_t, ncclTeamLsa, (ncclComm_t))                                                           \
  F(ncclTeam_t, ncclTeamRail, (ncclComm_t))                                                          \
  F(int, ncclTeamRankToWorld, (ncclComm_t, ncclTeam_t, int))                                         \
  F(int, ncclTeamRankToLsa, (ncclComm_t, ncclTeam_t, int))                                           \
  F(ncclResult_t, ncclLsaBarrierCreateRequirement,                                                   \
    (ncclTeam_t, int, ncclLsaBarrierHandle_t*, ncclDevResourceRequirements_t*))                      \
  F(ncclResult_t, ncclGinBarrierCreateRequirement,                                                   \
    (ncclComm_t, ncclTeam_t, int, ncclGinBarrierHandle_t*, ncclDevResourceRequirements_t*))          \
  F(int, ncclLLA2ACalcSlots, (int, int))                                                             \
  F(ncclResult_t, ncclLLA2ACreateRequirement, (int, int, ncclLLA2AHandle_t*, ncclDevResourceRequirements_t*))

#define TUTTI_NCCL_DEVICE_FUNCTIONS_2_32(F)                                                               \
  F(ncclResult_t, ncclCommQueryProperties, (ncclComm_t, ncclCommProperties_t*))                           \
  F(ncclResult_t, ncclGetLsaMultimemDevicePointer, (ncclWindow_t, size_t, void**))                        \
  F(ncclResult_t, ncclGetMultimemDevicePointer, (ncclWindow_t, size_t, ncclMultimemHandle_t, void**))     \
  F(ncclResult_t, ncclGetLsaDevicePointer, (ncclWindow_t, size_t, int, void**))                           \
  F(ncclResult_t, ncclGetPeerDevicePointer, (ncclWindow_t, size_t, int, void**))                          \
  F(ncclResult_t, ncclGetMultimemDeviceLeInfo, (ncclWindow_t, size_t, ncclCftLeId*, size_t*))             \
  F(ncclResult_t, ncclGetCftDeviceLeInfo, (ncclWindow_t, size_t, int, ncclTeam_t, ncclCftLeId*, size_t*)) \
  F(ncclResult_t, ncclGetPeerDeviceLeInfo, (ncclWindow_t, size_t, int, ncclCftLeId*, size_t*))            \
  F(ncclTeam_t, ncclTeamCft, (ncclComm_t, ncclCftTeamMode_t))                                             \
  F(ncclTeam_t, ncclTeamCftMultimem, (ncclComm_t))                                                        \
  F(ncclResult_t, ncclCftBarrierCreateRequirement,                                                        \
    (ncclTeam_t, int, ncclCftBarrierHandle_t*, ncclDevResourceRequirements_t*))

// These two its header declares for Windows only.
#define TUTTI_NCCL_UNDECLARED_FUNCTIONS(F)                                                                          \
  F(ncclResult_t, ncclGinOutboxCreateRequirement, (int, int, ncclGinOutboxHandle*, ncclDevResourceRequirements_t*)) \
  F(ncclResult_t, ncclGinInboxA2ACreateRequirement,                                                                 \
    (ncclTeam_t, int, int, ncclGinInboxA2AHandle*, ncclDevResourceRequirements_t*))

#define TUTTI_NCCL_DEVICE_FUNCTIONS(F) \
  TUTTI_NCCL_DEVICE_FUNCTIONS_2_28(F) TUTTI_NCCL_DEVICE_FUNCTIONS_2_32(F) TUTTI_NCCL_UNDECLARED_FUNCTIONS(F)

// A program that compares with NVIDIA's header cannot have two functions of one name.
#if !defined(TUTTI_NCCL_TYPES_ONLY)

namespace tutti::nccl {

extern "C" {
#define TUTTI_NCCL_DECLARE(result, name, parameters)                \
  __attribute__((visibility("default"))) result p##name parameters; \
  __attribute__((visibility("default"))) result name parameters;
TUTTI_NCCL_FUNCTIONS(TUTTI_NCCL_DECLARE)
TUTTI_NCCL_DEVICE_FUNCTIONS(TUTTI_NCCL_DECLARE)
#undef TUTTI_NCCL_DECLARE
}

}  // namespace tutti::nccl

// Defines pncclX, with ncclX as its weak alias: TUTTI_NCCL_DEFINE(ncclResult_t, ncclGetVersion, (int* version)) { ... }
// REQUIRES: at namespace tutti::nccl.
#define TUTTI_NCCL_DEFINE(result, name, parameters)                                                 \
  extern "C" __attribute__((weak, alias("p" #name), visibility("default"))) result name parameters; \
  extern "C" result p##name parameters

#endif
