// Baselines: Open MPI, MPICH, Gloo and NCCL behind the interface that Tutti's own communicator has, so that one program
// measures (or trains with) any of them by the same code.
//
// Each is a plug-in, build/lib/libtutti_baseline_<name>.so, opened on demand: Open MPI and MPICH define the same
// symbols and cannot share a process, and the library itself must not need any of them.
//
// What a baseline does not have (a type, an operation, abort, shrink) is Code::unsupported with a sentence. Blocking
// calls run on the caller's thread; start() runs them in order on a thread of the communicator's own. Counts above
// 2^31 - 1 are refused by the MPI ones. None of them promises the same bits for different algorithms: a call that asks
// for determinism is refused.
//
// NCCL's plug-in is always built and finds libnccl.so.2 (2.28 or newer) when it is opened. NCCL works on device memory
// only, so without a GPU opening it is Code::unsupported; but Tutti's own libnccl.so.2 (nccl/) serves in its place.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "base/status.h"
#include "collectives/communicator_interface.h"

namespace tutti {

struct BaselineSettings {
  int rank = 0;  // MPI ranks come from mpirun; the plug-in compares
  int size = 1;
  /// Gloo's and NCCL's ranks meet under this text, which all ranks of the job share and no other job has.
  std::string job;
  /// Gloo's ranks use the network interface of this name; empty: TUTTI_INTERFACE, or else loopback.
  std::string interface;
  std::chrono::milliseconds timeout{300'000};
};

/// `name` is openmpi, mpich, gloo or nccl. All ranks of the job call it. Plug-ins are looked for in the option
/// TUTTI_BASELINE_PATH if it is set, else in ../lib and ../lib/tutti beside the program, else where the loader looks.
/// Errors: invalid_argument (no such baseline), unsupported (not built here, or started without its launcher), system.
Result<std::shared_ptr<CommunicatorInterface>> open_baseline(const std::string& name, const BaselineSettings& settings);

/// Whether the plug-in's file is there.
bool baseline_is_installed(const std::string& name);

}  // namespace tutti
