// --ranks N: starts N local processes of the program itself and waits for them.
#pragma once

#include <string>
#include <vector>

namespace tutti::perf {

/// Tutti and Gloo: each process finds TUTTI_RANK, TUTTI_SIZE, TUTTI_LOCAL_RANK, TUTTI_LOCAL_SIZE, TUTTI_MASTER_ADDR,
/// TUTTI_MASTER_PORT and a fresh TUTTI_SECRET in its environment. Open MPI and MPICH: the program runs under the
/// library's own mpirun. Every child also finds TUTTI_LAUNCHED, which tells it to be a rank itself.
///
/// Where there are cores enough, each rank gets its own, as Open MPI's mpirun does it, because ranks that wait for each
/// other are often woken on the same core and then stay together for a while. MPICH is asked for the same; Gloo is left
/// alone, since its ranks have a second thread each.
///
/// Returns the first exit status that is not 0 (128 + the signal for a killed child), else 0. When one rank has failed,
/// the others are given a few seconds to fail by themselves and are then killed; they also die with this process.
int launch_ranks(int ranks, const std::string& backend, const std::vector<std::string>& command);

/// Whether this process is a rank already, started by launch_ranks(), mpirun or torchrun; then --ranks has no effect.
bool is_launched();

/// The command line that runs `command` on `ranks` ranks under the backend's own launcher.
std::vector<std::string> launcher_command(int ranks, const std::string& backend,
                                          const std::vector<std::string>& command);

}  // namespace tutti::perf
