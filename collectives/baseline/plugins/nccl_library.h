// NCCL, found at run time: nothing here is built against it. Its functions by the names and types of nccl/abi.h.
#pragma once

#include <string>

#include "base/status.h"
#include "nccl/abi.h"

namespace tutti {

#define TUTTI_NCCL_WANTED(F)  \
  F(ncclGetVersion)           \
  F(ncclGetErrorString)       \
  F(ncclGetLastError)         \
  F(ncclGetUniqueId)          \
  F(ncclCommInitRank)         \
  F(ncclCommSplit)            \
  F(ncclCommDestroy)          \
  F(ncclCommCount)            \
  F(ncclCommUserRank)         \
  F(ncclCommGetAsyncError)    \
  F(ncclGroupStart)           \
  F(ncclGroupEnd)             \
  F(ncclRedOpCreatePreMulSum) \
  F(ncclRedOpDestroy)         \
  F(ncclAllReduce)            \
  F(ncclReduceScatter)        \
  F(ncclAllGather)            \
  F(ncclBroadcast)            \
  F(ncclReduce)               \
  F(ncclAlltoAll)             \
  F(ncclGather)               \
  F(ncclScatter)              \
  F(ncclSend)                 \
  F(ncclRecv)

struct NcclLibrary {
#define TUTTI_NCCL_MEMBER(name) decltype(&nccl::name) name = nullptr;
  TUTTI_NCCL_WANTED(TUTTI_NCCL_MEMBER)
#undef TUTTI_NCCL_MEMBER
  bool takes_host_memory = false;  // Tutti's own library of that name, where there is no GPU

  /// A failure in NCCL's own words: "backend nccl: ncclAllReduce: ...". `rank`: ours; -1: none yet.
  Status check(nccl::ncclResult_t result, int rank, const char* function) const;
};

/// Opens libnccl.so.2, as the loader finds it, once; it stays open. Errors: unsupported, one sentence (no such library,
/// older than 2.28, no GPU).
Result<const NcclLibrary*> nccl_library();

}  // namespace tutti
