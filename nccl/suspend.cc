// The memory of a communicator: how much it is, and how it is given back for a while. A communicator that is suspended
// has none: it is ended, and its ranks keep an id by which they make it anew.

#include <fmt/format.h>

#include <functional>
#include <memory>
#include <utility>

#include "collectives/create.h"
#include "nccl/creation.h"
#include "nccl/group.h"

namespace tutti::nccl {
namespace {

/// All ranks call it, as for NCCL's. A failure finishes the communicator.
ncclResult_t submit_to(const char* function, const std::shared_ptr<Comm>& comm, std::function<Outcome()> body) {
  if (is_in_group(*comm)) {
    return refuse(
        {ncclInvalidUsage, fmt::format("{}: {} has calls in the group that is open; expected ncclGroupEnd first",
                                       function, comm->who())});
  }
  Task task;
  task.parent = comm;
  task.suspends = true;
  task.body = [comm, body = std::move(body)] {
    const Progress::Caller caller(comm->progress());
    Outcome outcome = body();
    outcome.finishes = !outcome.ok();
    return outcome;
  };
  return submit(std::move(task));
}

Outcome suspend(Comm& comm) {
  UniqueId resume_id{};
  try {
    if (comm.rank() == 0) resume_id = Communicator::make_unique_id();
    comm.tutti().broadcast(resume_id.bytes, resume_id.bytes, sizeof(resume_id.bytes), DataType::i8, 0);
    // A rank's memory, of host and GPU, is kept until all have left. It is given back when a communicator ends after
    // that. So this is a second one, of which next to nothing is touched.
    Communicator second = comm.tutti().split(0, comm.rank());
    comm.suspend(resume_id, second);
    second.barrier();
    comm.parted();
    return {};
  } catch (...) {
    comm.parted();
    forget_unique_id(resume_id);
    return outcome_of_current_exception("ncclCommSuspend");
  }
}

}  // namespace

TUTTI_NCCL_DEFINE(ncclResult_t, ncclCommSuspend, (ncclComm_t handle, int flags)) {
  return guarded("ncclCommSuspend", [&] {
    std::shared_ptr<Comm> comm;
    if (const Outcome found = find_comm("ncclCommSuspend", handle, comm); !found.ok()) return refuse(found);
    if (flags != kSuspendMemory) {
      return refuse({ncclInvalidArgument,
                     fmt::format("ncclCommSuspend: {}: flags is {}; expected NCCL_SUSPEND_MEM", comm->who(), flags)});
    }
    if (const Outcome settled = comm->settled("ncclCommSuspend"); !settled.ok()) return refuse(settled);
    return submit_to("ncclCommSuspend", comm, [comm] { return suspend(*comm); });
  });
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclCommResume, (ncclComm_t handle)) {
  return guarded("ncclCommResume", [&] {
    std::shared_ptr<Comm> comm;
    if (const Outcome found = find_comm("ncclCommResume", handle, comm); !found.ok()) return refuse(found);
    const Outcome state = comm->state();
    if (!comm->suspended() || state.result == ncclInProgress) {
      const Outcome settled = comm->settled("ncclCommResume");
      return refuse(!settled.ok() ? settled
                                  : Outcome{ncclInvalidUsage, fmt::format("ncclCommResume: {}: the communicator is not "
                                                                          "suspended; expected ncclCommSuspend before",
                                                                          comm->who())});
    }
    if (!state.ok()) return refuse(state);
    return submit_to("ncclCommResume", comm, [comm] {
      return make_into("ncclCommResume", comm, [&] {
        return Communicator::from_unique_id(comm->resume_id(), comm->rank(), comm->size(), own_options());
      });
    });
  });
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclCommMemStats, (ncclComm_t handle, ncclCommMemStat_t stat, uint64_t* value)) {
  return guarded("ncclCommMemStats", [&] {
    std::shared_ptr<Comm> comm;
    if (const Outcome found = find_comm("ncclCommMemStats", handle, comm); !found.ok()) return report(found);
    if (value == nullptr) {
      return fail(ncclInvalidArgument, fmt::format("ncclCommMemStats: {}: value is null", comm->who()));
    }
    const Outcome settled = comm->settled("ncclCommMemStats");  // before: another thread may suspend it now
    const bool suspended = !settled.ok() && comm->suspended() && comm->state().result != ncclInProgress;
    if (!suspended && !settled.ok()) return report(settled);
    switch (stat) {
      case ncclStatGpuMemSuspended: *value = suspended ? 1 : 0; return ncclSuccess;
      case ncclStatGpuMemPersist: *value = 0; return ncclSuccess;
      case ncclStatGpuMemSuspend:
      case ncclStatGpuMemTotal: {
        const Communicator held = comm->held();
        *value = held ? held.memory().total() : 0;
        return ncclSuccess;
      }
    }
    return fail(ncclInvalidArgument, fmt::format("ncclCommMemStats: {}: stat is {}; expected 0 to {}", comm->who(),
                                                 static_cast<int>(stat), static_cast<int>(ncclStatGpuMemTotal)));
  });
}

}  // namespace tutti::nccl
