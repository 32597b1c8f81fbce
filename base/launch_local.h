// --ranks N of a program: starts N local processes of the program itself and waits for them.
#pragma once

#include <string>
#include <vector>

namespace tutti {

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
/// Returns the first exit status that is not 0 (128 + the signal for a killed child, 127 when there is no such program,
/// 2 when a process could not be started), else 0. When one rank has failed, the others are given a few seconds to fail
/// by themselves and are then killed; they also die with this process. One thread at a time: it waits for any child.
int launch_local(const LocalLaunch& launch, const std::vector<std::string>& command);

/// Whether this process is a rank already, started by launch_local(), mpirun, torchrun or srun; then --ranks has no
/// effect.
bool is_launched();

/// The command line that runs `command` under the own launcher of an MPI library. REQUIRES: backend openmpi or mpich.
std::vector<std::string> mpi_command(const LocalLaunch& launch, const std::vector<std::string>& command);

}  // namespace tutti
