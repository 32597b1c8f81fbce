// The host side of NCCL's device interface (nccl_device.h), which lets a program's own kernels communicate. Tutti has
// no such thing: what would make it is refused, and the teams say that no rank loads from another.

#include <algorithm>
#include <cstring>
#include <memory>

#include "nccl/comm.h"

namespace tutti::nccl {
namespace {

ncclResult_t refuse_call(const char* function) {
  return guarded(function,
                 [&] { return report(not_served(function, "it has no interface for a program's own kernels")); });
}

/// All ranks; of none for what is no communicator.
ncclTeam_t world(ncclComm_t handle) {
  const std::shared_ptr<Comm> comm = comm_of(handle);
  return comm == nullptr ? ncclTeam_t{0, 0, 1} : ncclTeam_t{comm->size(), comm->rank(), 1};
}

}  // namespace

TUTTI_NCCL_DEFINE(ncclResult_t, ncclDevCommCreate, (ncclComm_t, const ncclDevCommRequirements_t*, ncclDevComm_t*)) {
  return refuse_call("ncclDevCommCreate");
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclDevCommDestroy, (ncclComm_t, const ncclDevComm_t*)) {
  return refuse_call("ncclDevCommDestroy");
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclLsaBarrierCreateRequirement,
                  (ncclTeam_t, int, ncclLsaBarrierHandle_t*, ncclDevResourceRequirements_t*)) {
  return refuse_call("ncclLsaBarrierCreateRequirement");
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclGinBarrierCreateRequirement,
                  (ncclComm_t, ncclTeam_t, int, ncclGinBarrierHandle_t*, ncclDevResourceRequirements_t*)) {
  return refuse_call("ncclGinBarrierCreateRequirement");
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclLLA2ACreateRequirement,
                  (int, int, ncclLLA2AHandle_t*, ncclDevResourceRequirements_t*)) {
  return refuse_call("ncclLLA2ACreateRequirement");
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclCftBarrierCreateRequirement,
                  (ncclTeam_t, int, ncclCftBarrierHandle_t*, ncclDevResourceRequirements_t*)) {
  return refuse_call("ncclCftBarrierCreateRequirement");
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclGinOutboxCreateRequirement,
                  (int, int, ncclGinOutboxHandle*, ncclDevResourceRequirements_t*)) {
  return refuse_call("ncclGinOutboxCreateRequirement");
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclGinInboxA2ACreateRequirement,
                  (ncclTeam_t, int, int, ncclGinInboxA2AHandle*, ncclDevResourceRequirements_t*)) {
  return refuse_call("ncclGinInboxA2ACreateRequirement");
}

TUTTI_NCCL_DEFINE(int, ncclLLA2ACalcSlots, (int, int)) { return 0; }

TUTTI_NCCL_DEFINE(ncclTeam_t, ncclTeamWorld, (ncclComm_t comm)) { return world(comm); }

// Each rank is alone among those whose memory its kernels load from, and so all ranks are on its rail.
TUTTI_NCCL_DEFINE(ncclTeam_t, ncclTeamLsa, (ncclComm_t)) { return {1, 0, 1}; }

TUTTI_NCCL_DEFINE(ncclTeam_t, ncclTeamCft, (ncclComm_t, ncclCftTeamMode_t)) { return {1, 0, 1}; }

TUTTI_NCCL_DEFINE(ncclTeam_t, ncclTeamCftMultimem, (ncclComm_t)) { return {1, 0, 1}; }

TUTTI_NCCL_DEFINE(ncclTeam_t, ncclTeamRail, (ncclComm_t comm)) { return world(comm); }

TUTTI_NCCL_DEFINE(int, ncclTeamRankToWorld, (ncclComm_t comm, ncclTeam_t team, int rank)) {
  return world(comm).rank + (rank - team.rank) * team.stride;
}

TUTTI_NCCL_DEFINE(int, ncclTeamRankToLsa, (ncclComm_t, ncclTeam_t team, int rank)) {
  return (rank - team.rank) * team.stride;
}

// ---- Addresses in windows, of which there are none ----

TUTTI_NCCL_DEFINE(ncclResult_t, ncclGetLsaMultimemDevicePointer, (ncclWindow_t, size_t, void**)) {
  return refuse_call("ncclGetLsaMultimemDevicePointer");
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclGetMultimemDevicePointer, (ncclWindow_t, size_t, ncclMultimemHandle_t, void**)) {
  return refuse_call("ncclGetMultimemDevicePointer");
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclGetLsaDevicePointer, (ncclWindow_t, size_t, int, void**)) {
  return refuse_call("ncclGetLsaDevicePointer");
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclGetPeerDevicePointer, (ncclWindow_t, size_t, int, void**)) {
  return refuse_call("ncclGetPeerDevicePointer");
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclGetMultimemDeviceLeInfo, (ncclWindow_t, size_t, ncclCftLeId*, size_t*)) {
  return refuse_call("ncclGetMultimemDeviceLeInfo");
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclGetCftDeviceLeInfo,
                  (ncclWindow_t, size_t, int, ncclTeam_t, ncclCftLeId*, size_t*)) {
  return refuse_call("ncclGetCftDeviceLeInfo");
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclGetPeerDeviceLeInfo, (ncclWindow_t, size_t, int, ncclCftLeId*, size_t*)) {
  return refuse_call("ncclGetPeerDeviceLeInfo");
}

// ---- What a communicator can do ----

TUTTI_NCCL_DEFINE(ncclResult_t, ncclCommQueryProperties, (ncclComm_t handle, ncclCommProperties_t* to)) {
  return guarded("ncclCommQueryProperties", [&] {
    constexpr std::size_t kLeast = offsetof(ncclCommProperties_t, rank);
    std::shared_ptr<Comm> comm;
    if (const Outcome found = find_comm("ncclCommQueryProperties", handle, comm); !found.ok()) return report(found);
    if (to == nullptr || to->magic != kApiMagic || to->size < kLeast) {
      return fail(ncclInvalidArgument,
                  "ncclCommQueryProperties: props was not made by NCCL_COMM_PROPERTIES_INITIALIZER");
    }
    if (comm->state().result == ncclInProgress) return report(comm->settled("ncclCommQueryProperties"));
    ncclCommProperties_t known{};  // nothing of NCCL's device interface
    known.size = to->size;
    known.magic = to->magic;
    known.version = to->version;
    known.rank = comm->rank();
    known.nRanks = comm->size();
    known.cudaDev = known.nvmlDev = comm->device();
    known.nLsaTeams = comm->size();  // each rank is one by itself
    std::memcpy(to, &known, std::min(to->size, sizeof(known)));
    return ncclSuccess;
  });
}

}  // namespace tutti::nccl
