// Finds out which launcher has started this process as a rank, from the variables that launchers set.
#pragma once

#include <functional>
#include <string>

#include "base/status.h"

namespace tutti {

/// The variables by which a launcher gives a rank its number.
struct Launcher {
  const char* name;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;  // empty: it sets none
};

inline constexpr Launcher kTuttiLauncher{"tutti", "TUTTI_RANK", "TUTTI_SIZE", "TUTTI_LOCAL_RANK", "TUTTI_LOCAL_SIZE"};
inline constexpr Launcher kTorchrun{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
inline constexpr Launcher kOpenMpi{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                   "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
inline constexpr Launcher kMpich{"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
inline constexpr Launcher kSlurm{"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""};

/// Set for each rank that launch_local() starts.
inline constexpr const char* kLaunchedVariable = "TUTTI_LAUNCHED";

/// Returns the value of a variable; empty if it is not set.
using Variable = std::function<std::string(const char* name)>;

/// Returns the launcher whose variables count, or null. It is the innermost one, since torchrun and mpirun may run
/// inside a Slurm job. A size without a rank is no launch, except TUTTI_SIZE: no other launcher sets that variable.
const Launcher* launcher_of(const Variable& variable);

/// Returns whether a program with `option` (--ranks or -t) `ranks` starts these ranks; false: it is one of them.
/// TUTTI_LAUNCHED decides first: ranks that launch_local() has started start none. Otherwise the program starts them,
/// even if variables of a surrounding job are left over. Errors: invalid_argument if a launcher has started this
/// process as one of several ranks, which contradicts the option.
Result<bool> starts_ranks(const std::string& option, int ranks, const Variable& variable);
/// Looks at this process's environment.
Result<bool> starts_ranks(const std::string& option, int ranks);

/// Returns whether this process is a rank already, started by launch_local(), mpirun, torchrun or srun.
bool is_launched();

}  // namespace tutti
