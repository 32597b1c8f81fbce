// Which launcher has started this process as a rank, by the variables that launchers set. Pure functions of these.
#pragma once

#include <functional>
#include <string>

#include "base/status.h"

namespace tutti {

/// The variables in which a launcher tells a rank its place.
struct Launcher {
  const char* name;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;  // empty: it does not tell
};

inline constexpr Launcher kTuttiLauncher{"tutti", "TUTTI_RANK", "TUTTI_SIZE", "TUTTI_LOCAL_RANK", "TUTTI_LOCAL_SIZE"};
inline constexpr Launcher kTorchrun{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
inline constexpr Launcher kOpenMpi{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                   "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
inline constexpr Launcher kMpich{"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
inline constexpr Launcher kSlurm{"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""};

/// Set for each rank that launch_local() starts, beside its place.
inline constexpr const char* kLaunchedVariable = "TUTTI_LAUNCHED";

/// The value of a variable; empty when it is not set.
using Variable = std::function<std::string(const char* name)>;

/// Whose variables count, the innermost launcher first, since torchrun and mpirun may run inside a Slurm job; null:
/// nobody's. A size without a rank is no launch, except TUTTI_SIZE: no other launcher sets that variable.
const Launcher* launcher_of(const Variable& variable);

/// Whether a program that was told `option` (--ranks or -t) `ranks` is to start them; false: it is one of them. Ranks
/// that launch_local() has started are; so TUTTI_LAUNCHED decides first. Otherwise the program starts them, also where
/// variables of a surrounding job are left over. Errors: invalid_argument, where a launcher has started this process as
/// one of several ranks: the two contradict each other.
Result<bool> starts_ranks(const std::string& option, int ranks, const Variable& variable);
/// By this process's environment.
Result<bool> starts_ranks(const std::string& option, int ranks);

/// Whether this process is a rank already, started by launch_local(), mpirun, torchrun or srun.
bool is_launched();

}  // namespace tutti
