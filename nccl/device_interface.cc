// The host side of NCCL's device interface (nccl_device.h), which lets a program's own kernels communicate. Tutti has
// no such thing: what would make it is refused, and the teams say that no rank loads from another.

#include <fmt/format.h>

#include "nccl/comm.h"

namespace tutti::nccl {
namespace {

ncclResult_t not_served(const char* function) {
  return guarded(function, [&] {
    return fail(
        ncclInvalidUsage,
        fmt::format("{}: not served by this library: it has no interface for a program's own kernels", function));
  });
}

/// All ranks; of none for what is no communicator.
ncclTeam_t world(ncclComm_t handle) {
  const std::shared_ptr<Comm> comm = comm_of(handle);
  return comm == nullptr ? ncclTeam_t{0, 0, 1} : ncclTeam_t{comm->size(), comm->rank(), 1};
}

}  // namespace

TUTTI_NCCL_DEFINE(ncclResult_t, ncclDevCommCreate, (ncclComm_t, const ncclDevCommRequirements_t*, ncclDevComm_t*)) {
  return not_served("ncclDevCommCreate");
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclDevCommDestroy, (ncclComm_t, const ncclDevComm_t*)) {
  return not_served("ncclDevCommDestroy");
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclLsaBarrierCreateRequirement,
                  (ncclTeam_t, int, ncclLsaBarrierHandle_t*, ncclDevResourceRequirements_t*)) {
  return not_served("ncclLsaBarrierCreateRequirement");
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclGinBarrierCreateRequirement,
                  (ncclComm_t, ncclTeam_t, int, ncclGinBarrierHandle_t*, ncclDevResourceRequirements_t*)) {
  return not_served("ncclGinBarrierCreateRequirement");
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclLLA2ACreateRequirement,
                  (int, int, ncclLLA2AHandle_t*, ncclDevResourceRequirements_t*)) {
  return not_served("ncclLLA2ACreateRequirement");
}

TUTTI_NCCL_DEFINE(int, ncclLLA2ACalcSlots, (int, int)) { return 0; }

TUTTI_NCCL_DEFINE(ncclTeam_t, ncclTeamWorld, (ncclComm_t comm)) { return world(comm); }

// Each rank is alone among those whose memory its kernels load from, and so everybody is on its rail.
TUTTI_NCCL_DEFINE(ncclTeam_t, ncclTeamLsa, (ncclComm_t)) { return {1, 0, 1}; }

TUTTI_NCCL_DEFINE(ncclTeam_t, ncclTeamRail, (ncclComm_t comm)) { return world(comm); }

TUTTI_NCCL_DEFINE(int, ncclTeamRankToWorld, (ncclComm_t comm, ncclTeam_t team, int rank)) {
  return world(comm).rank + (rank - team.rank) * team.stride;
}

TUTTI_NCCL_DEFINE(int, ncclTeamRankToLsa, (ncclComm_t, ncclTeam_t team, int rank)) {
  return (rank - team.rank) * team.stride;
}

}  // namespace tutti::nccl
