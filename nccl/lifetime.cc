// What a communicator says of itself, and how it ends.

#include <fmt/format.h>

#include <memory>

#include "nccl/group.h"

namespace tutti::nccl {
namespace {

/// Writes what `read` gives of the communicator to *to. `parameter`: its name.
template <class T, class Read>
ncclResult_t read_from(const char* function, ncclComm_t handle, T* to, const char* parameter, Read&& read) {
  return guarded(function, [&] {
    std::shared_ptr<Comm> comm;
    if (const Outcome found = find_comm(function, handle, comm); !found.ok()) return report(found);
    if (to == nullptr) return fail(ncclInvalidArgument, fmt::format("{}: {} is null", function, parameter));
    return read(*comm);
  });
}

/// Returns a number that is known when the communicator stands.
template <class Read>
ncclResult_t read_number(const char* function, ncclComm_t handle, int* to, const char* parameter, Read&& read) {
  return read_from(function, handle, to, parameter, [&](const Comm& comm) {
    if (comm.state().result == ncclInProgress) return report(comm.settled(function));
    *to = read(comm);
    return ncclSuccess;
  });
}

/// Ends the handle. In a group that still has calls on it, that would leave them without their communicator.
Outcome take(const char* function, ncclComm_t handle, std::shared_ptr<Comm>& comm) {
  Outcome found = find_comm(function, handle, comm);
  if (found.ok() && is_in_group(*comm)) {
    return {ncclInvalidUsage, fmt::format("{}: {} has calls in the group that is open; expected ncclGroupEnd first",
                                          function, comm->who())};
  }
  return found;
}

}  // namespace

TUTTI_NCCL_DEFINE(ncclResult_t, ncclCommCount, (const ncclComm_t comm, int* count)) {
  return read_number("ncclCommCount", comm, count, "count", [](const Comm& c) { return c.size(); });
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclCommUserRank, (const ncclComm_t comm, int* rank)) {
  return read_number("ncclCommUserRank", comm, rank, "rank", [](const Comm& c) { return c.rank(); });
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclCommCuDevice, (const ncclComm_t comm, int* device)) {
  return read_number("ncclCommCuDevice", comm, device, "device", [](const Comm& c) { return c.device(); });
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t* error)) {
  return read_from("ncclCommGetAsyncError", comm, error, "asyncError", [&](const Comm& c) {
    const Outcome state = c.asynchronous_state();
    *error = state.result;
    if (!state.ok() && state.result != ncclInProgress) fail(state.result, state.text);
    return ncclSuccess;
  });
}

TUTTI_NCCL_DEFINE(const char*, ncclGetLastError, (ncclComm_t handle)) {
  try {
    if (const std::shared_ptr<Comm> comm = comm_of(handle); comm != nullptr) {
      const Outcome state = comm->asynchronous_state();
      if (!state.ok() && state.result != ncclInProgress) return keep_for_caller(state.text);
    }
    return last_error();
  } catch (...) {
    return "";
  }
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclCommFinalize, (ncclComm_t handle)) {
  return guarded("ncclCommFinalize", [&] {
    std::shared_ptr<Comm> comm;
    if (const Outcome taken = take("ncclCommFinalize", handle, comm); !taken.ok()) return report(taken);
    // What is under way is what this waits for.
    const bool busy = comm->state().result == ncclInProgress;
    if (!busy || comm->revoked()) {
      if (const Outcome settled = comm->settled("ncclCommFinalize"); !settled.ok()) return report(settled);
    }
    comm->finalize();
    if (!busy) return ncclSuccess;
    if (!comm->blocking()) return ncclInProgress;
    comm->progress().wait_idle();
    return report(comm->state());
  });
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclCommDestroy, (ncclComm_t handle)) {
  return guarded("ncclCommDestroy", [&] {
    if (handle == nullptr) return ncclSuccess;
    std::shared_ptr<Comm> comm;
    if (const Outcome taken = take("ncclCommDestroy", handle, comm); !taken.ok()) return report(taken);
    comm->progress().wait_idle();
    close_handle(handle);
    return ncclSuccess;
  });
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclCommAbort, (ncclComm_t handle)) {
  return guarded("ncclCommAbort", [&] {
    if (handle == nullptr) return ncclSuccess;
    std::shared_ptr<Comm> comm;
    if (const Outcome taken = take("ncclCommAbort", handle, comm); !taken.ok()) return report(taken);
    comm->abort("ncclCommAbort");
    close_handle(handle);
    return ncclSuccess;
  });
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclCommRevoke, (ncclComm_t handle, int flags)) {
  return guarded("ncclCommRevoke", [&] {
    std::shared_ptr<Comm> comm;
    if (const Outcome taken = take("ncclCommRevoke", handle, comm); !taken.ok()) return report(taken);
    if (flags != kRevokeDefault) {
      return fail(
          ncclInvalidArgument,
          fmt::format("ncclCommRevoke: {}: revokeFlags is {}; expected NCCL_REVOKE_DEFAULT", comm->who(), flags));
    }
    if (const Outcome awake = comm->awake("ncclCommRevoke"); !awake.ok()) return report(awake);
    if (!comm->revoke("ncclCommRevoke")) {
      if (const Outcome awake = comm->awake("ncclCommRevoke"); !awake.ok()) return report(awake);  // since then
      return fail(ncclInvalidUsage, fmt::format("ncclCommRevoke: {} is still being made", comm->who()));
    }
    return ncclSuccess;
  });
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclGetVersion, (int* version)) {
  if (version == nullptr) return fail(ncclInvalidArgument, "ncclGetVersion: version is null");
  *version = kVersionCode;
  return ncclSuccess;
}

// What NCCL logs is chosen by NCCL_DEBUG, which this library does not read; Tutti's TUTTI_LOG is read once.
TUTTI_NCCL_DEFINE(void, ncclResetDebugInit, ()) {}

// Tells this library from NVIDIA's: a program that finds it may pass host memory.
extern "C" __attribute__((visibility("default"))) const char* tutti_nccl_version() { return version(); }

}  // namespace tutti::nccl
