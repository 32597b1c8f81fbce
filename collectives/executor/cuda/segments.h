// A program in segments, divided at its waits, for ranks whose kernels do not run at the same time: processes that
// share a GPU take turns on it, so a kernel that waits for a peer's signal would wait for as long as the GPU lets it.
// Here kernels never wait; between them the stream does (cuStreamWaitValue64), on the same counters.
//
//   for (const SegmentLaunch& one : segments_of(program)) {
//     for (const SegmentLaunch::Wait& wait : one.before) ... let the stream wait for the next signal of wait.peer ...
//     ... launch with arguments.segment = one.segment ...
//   }
#pragma once

#include <vector>

#include "collectives/executor/cuda/launch.h"

namespace tutti::executor::cuda {

struct SegmentLaunch {
  struct Wait {
    int peer = 0;
    int channel = 0;
  };
  std::vector<Wait> before;
  Segment segment;
};

/// The first segment announces the call and does nothing else; behind it the stream must wait until all ranks have
/// announced the call before (the gate). REQUIRES: the program has one lane, opens no peer, and is no express program.
std::vector<SegmentLaunch> segments_of(const Program& program);

/// Whether a program can be divided so.
bool can_be_segmented(const Program& program);

}  // namespace tutti::executor::cuda
