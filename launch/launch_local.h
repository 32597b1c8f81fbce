// --ranks N of a program: starts N local processes of the program itself and waits for them.
#pragma once

#include <string>
#include <vector>

namespace tutti {

/// As many as a communicator has (transport/transport.h).
inline constexpr int kMostLocalRanks = 1024;

struct LocalLaunch {
  int ranks = 1;
  std::string backend = "tutti";  // "tutti", "gloo", "nccl", "openmpi", "mpich"
  int cores_per_rank = 1;         // that a rank keeps busy
};

/// Tutti, Gloo and NCCL: each process finds TUTTI_RANK, TUTTI_SIZE, TUTTI_LOCAL_RANK, TUTTI_LOCAL_SIZE, and a fresh
/// TUTTI_JOB and TUTTI_SECRET in its environment, and no TUTTI_MASTER_ADDR, so the ranks meet inside the host. Open MPI
/// and MPICH: the program runs under the library's own mpirun. Every child also finds TUTTI_LAUNCHED, which tells it to
/// be a rank itself.
///
/// Where there are cores enough, each rank gets cores of its own, as Open MPI's mpirun does it, because ranks that wait
/// for each other are often woken on the same core and then stay together for a while. MPICH is asked for the same
/// where a rank needs one core; Gloo is left alone, since its ranks have a second thread each.
///
/// Returns the exit status of the first rank that failed (128 + the signal for a killed one, 127 when there is no such
/// program, 2 when a process could not be started), else 0. The other ranks may then fail by themselves; those that
/// still run after 1.5 s get SIGTERM, and SIGKILL after 2 s. They also die with this process. Signals that a user or a
/// scheduler sends to this process are passed on to all ranks, unless it ignores them. It does not matter how SIGCHLD
/// is handled here. One thread at a time; signals are held for the calling thread, so the program should have no other
/// yet.
int launch_local(const LocalLaunch& launch, const std::vector<std::string>& command);

/// The command line that runs `command` under the own launcher of an MPI library. REQUIRES: backend openmpi or mpich.
std::vector<std::string> mpi_command(const LocalLaunch& launch, const std::vector<std::string>& command);

}  // namespace tutti
