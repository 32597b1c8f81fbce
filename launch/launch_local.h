// Starts N local processes of a program itself (its option --ranks N) and waits for them.
#pragma once

#include <string>
#include <vector>

namespace tutti {

/// The most ranks of a communicator (transport/transport.h).
inline constexpr int kMostLocalRanks = 1024;

struct LocalLaunch {
  int ranks = 1;
  std::string backend = "tutti";  // "tutti", "gloo", "nccl", "openmpi", "mpich"
  int cores_per_rank = 1;         // cores that a rank keeps busy
};

/// Starts `command` as `launch.ranks` processes and waits until all have ended.
///
/// Tutti, Gloo and NCCL: each process gets TUTTI_RANK, TUTTI_SIZE, TUTTI_LOCAL_RANK, TUTTI_LOCAL_SIZE, and a fresh
/// TUTTI_JOB and TUTTI_SECRET. TUTTI_MASTER_ADDR is removed, so the ranks meet inside the host. Open MPI and MPICH: the
/// program runs under the library's own mpirun. TUTTI_LAUNCHED tells every child that it is a rank.
///
/// Cores: if there are enough, each rank is bound to cores of its own, as Open MPI's mpirun does it. Ranks that wait
/// for each other are otherwise often woken on the same core and stay together for a while. MPICH is asked for the same
/// if a rank needs one core. Gloo is not bound, since its ranks have a second thread each.
///
/// Returns the exit status of the first rank that failed, else 0: 128 + the signal for a killed one, 127 for a missing
/// program, 2 for a process that could not be started. After a failure the other ranks have 1.5 s to fail themselves;
/// then they get SIGTERM, and SIGKILL after 2 s. They also die with this process.
///
/// Signals from a user or a scheduler are passed on to all ranks, unless this process ignores them. Any disposition of
/// SIGCHLD is fine. Threads: one at a time, and best before the program starts others, since signals are blocked for
/// the calling thread alone.
int launch_local(const LocalLaunch& launch, const std::vector<std::string>& command);

/// Returns the command line that runs `command` under an MPI library's own launcher. REQUIRES: backend openmpi or
/// mpich.
std::vector<std::string> mpi_command(const LocalLaunch& launch, const std::vector<std::string>& command);

}  // namespace tutti
