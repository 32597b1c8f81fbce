// What this library refuses by name: windows, one-sided communication and encrypted sockets.

#include <fmt/format.h>

#include "nccl/config.h"
#include "nccl/group.h"

namespace tutti::nccl {
namespace {

constexpr const char* kNoWindows =
    "Tutti reaches a peer's memory without windows (ncclMemAlloc gives such memory), and has no kernels that load from "
    "them";
constexpr const char* kNotOneSided = "it has no one-sided communication; expected ncclSend and ncclRecv";

ncclResult_t refuse_as(const char* function, const char* why) {
  return guarded(function, [&] { return refuse(not_served(function, why)); });
}

}  // namespace

TUTTI_NCCL_DEFINE(ncclResult_t, ncclCommWindowRegister, (ncclComm_t, void*, size_t, ncclWindow_t*, int)) {
  return refuse_as("ncclCommWindowRegister", kNoWindows);
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclCommWindowDeregister, (ncclComm_t, ncclWindow_t)) {
  return refuse_as("ncclCommWindowDeregister", kNoWindows);
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclWinGetUserPtr, (ncclComm_t, ncclWindow_t, void**)) {
  return refuse_as("ncclWinGetUserPtr", kNoWindows);
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclPutSignal,
                  (const void*, size_t, ncclDataType_t, int, ncclWindow_t, size_t, int, int, unsigned, ncclComm_t,
                   cudaStream_t)) {
  return refuse_as("ncclPutSignal", kNotOneSided);
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclSignal, (int, int, int, unsigned, ncclComm_t, cudaStream_t)) {
  return refuse_as("ncclSignal", kNotOneSided);
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclWaitSignal, (int, ncclWaitSignalDesc_t*, ncclComm_t, cudaStream_t)) {
  return refuse_as("ncclWaitSignal", kNotOneSided);
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclSetEncryption, (const ncclEncryptionConfig_t* given)) {
  return guarded("ncclSetEncryption", [&] {
    if (given == nullptr) return fail(ncclInvalidArgument, "ncclSetEncryption: config is null");
    ncclEncryptionConfig_t known{};
    const Outcome read = read_struct("ncclSetEncryption", "NCCL_ENCRYPTION_CONFIG_INITIALIZER", *given,
                                     sizeof(ncclEncryptionConfig_t), known);
    if (!read.ok()) return report(read);
    if (known.mode == kEncryptionNone) return ncclSuccess;
    if (known.mode == kEncryptionPsk) {
      return report(not_served("ncclSetEncryption", "it encrypts nothing; expected NCCL_ENCRYPTION_MODE_NONE"));
    }
    return fail(ncclInvalidArgument,
                fmt::format("ncclSetEncryption: mode is {}; expected NCCL_ENCRYPTION_MODE_NONE", known.mode));
  });
}

}  // namespace tutti::nccl
