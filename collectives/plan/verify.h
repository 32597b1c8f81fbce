// Proves a plan by walking the steps of all ranks together, with values and clocks in place of bytes:
//
//   exact      every output element ends with exactly the right contributions (each rank once), avg divides once, and a
//              plan that claims rank order forms each sum in one step over all ranks in rank order
//   race-free  two accesses to the same place, one of them a write, are ordered by signals; also across ranks, against
//              the caller (who may touch the buffers before and after the call) and in scratch that later rounds use
//              again
//   no hang    the walk ends. One schedule decides for all: a signal only ever adds to a counter that one waiter reads,
//   so
//              no step takes away another's chance to run, and whatever can run now can run later too
//   in bounds  pieces, slots and ranks exist, and every signal of a call is waited for within that call
//
// With no races the values are the same in every schedule, so walking one proves exactness for all. Order is tracked
// with vector clocks, one last writer and the readers since per place: Flanagan and Freund, "FastTrack: efficient and
// precise dynamic race detection", PLDI 2009.
//
// A place is (rank, space, piece, round) in the callers' buffers and (rank, space, slot, parity of the round) in
// scratch.
#pragma once

#include <vector>

#include "base/status.h"
#include "collectives/plan/plan.h"

namespace tutti::plan {

struct VerifyOptions {
  bool in_place = false;
  int rounds = 3;  // the first that uses a slot again is the third
};

/// Ok, or one sentence that names rank, lane, step and round. Pure; any thread.
Status verify(const Plan& plan, const VerifyOptions& options = {});

/// Verifies plans that run one after the other in one communicator, under the rule of the gate (plan.h): calls use the
/// halves of scratch in turn and signals count on. A call may lay out its half differently, so any two accesses to the
/// same half of a rank in different calls must be ordered. REQUIRES: all plans have the same number of ranks.
Status verify_sequence(const std::vector<const Plan*>& plans, const VerifyOptions& options = {});

/// Checks what needs no walk: shapes, bounds and balanced signals.
Status check_shape(const Plan& plan, const VerifyOptions& options = {});

}  // namespace tutti::plan
