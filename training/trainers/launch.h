// --ranks N: a trainer starts N local processes of itself and waits for them.
#pragma once

#include <string>
#include <vector>

namespace tutti::training {

/// Each process finds TUTTI_RANK, TUTTI_SIZE, TUTTI_MASTER_ADDR, TUTTI_MASTER_PORT and a fresh TUTTI_SECRET in its
/// environment; with the backends openmpi and mpich it runs under the library's own mpirun instead. Every child also
/// finds TUTTI_LAUNCHED and dies with this process. Returns the first exit status that is not 0 (128 + the signal for a
/// killed child), else 0; after a failure the other ranks have ten seconds to end by themselves.
int launch_ranks(int ranks, const std::string& backend, const std::vector<std::string>& command);

/// Whether somebody (launch_ranks(), mpirun, torchrun, srun) has made this process a rank already.
bool is_a_rank();

}  // namespace tutti::training
