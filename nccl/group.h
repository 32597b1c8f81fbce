// ncclGroupStart ... ncclGroupEnd, of the calling thread. Outside a group a call is a group of its own.
//
// What a group's end does: first all communicators that are to be made, split or shrunk, at the same time, those of one
// parent in their order. Then the operations: of each communicator its collectives in the order of the calls, then its
// messages all at once (NCCL's order too); different communicators at the same time. It waits for all of it, unless the
// communicators are non-blocking: then it returns ncclInProgress, and each communicator says when it is done.
//
// Suspend and Resume have no other call on their communicator beside them in a group, since none of the orders is
// right.
//
// A call that is wrong by itself is refused at once. The group then ends with the same failure and runs nothing.
#pragma once

#include <functional>
#include <memory>

#include "nccl/abi.h"
#include "nccl/comm.h"
#include "nccl/errors.h"
#include "nccl/operation.h"

namespace tutti::nccl {

/// A communicator to be made, or work on all ranks of `parent`.
struct Task {
  std::shared_ptr<Comm> comm;     // to be made; null: this rank gets none
  std::shared_ptr<Comm> parent;   // null: none
  bool suspends = false;          // or resumes `parent`, on which the group then has no other call
  ncclComm_t* slot = nullptr;     // the program's variable: the handle, null where it failed; null: none is given
  std::function<Outcome()> body;  // calls comm->made(), or says why not
};

/// Runs it, or keeps it for the end of the group.
ncclResult_t submit(Operation operation);
/// Sets *task.slot, where there is one, to a new handle at once.
ncclResult_t submit(Task task);

/// A call failed before it came to submit(): its result, which a group that is open ends with.
ncclResult_t refuse(const Outcome& outcome);

/// Is one of the calls that wait for the end of this thread's group on `comm`?
bool is_in_group(const Comm& comm);
/// Ok unless this thread's group suspends or resumes `comm`: nothing may follow that.
Outcome follows(const char* function, const Comm& comm);

}  // namespace tutti::nccl
