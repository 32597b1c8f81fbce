// Reads from the launcher's environment which rank this process is, and where the bootstrap server of its job is.
//
//   launcher   rank, size                           job                                bootstrap server
//   tutti      TUTTI_RANK, TUTTI_SIZE               TUTTI_JOB, or TUTTI_MASTER_*, or   TUTTI_MASTER_ADDR
//                                                   the launching process
//   torchrun   RANK, WORLD_SIZE                     TORCHELASTIC_RUN_ID, MASTER_*      MASTER_ADDR
//   Open MPI   OMPI_COMM_WORLD_RANK, _SIZE          PMIX_NAMESPACE                     OMPI_MCA_orte_hnp_uri: mpirun's
//   MPICH      PMI_RANK, PMI_SIZE                   the launching process, or          --control-port of that process,
//                                                   mpiexec's address                  or PMI_PORT: mpiexec's
//   Slurm      SLURM_PROCID, SLURM_STEP_NUM_TASKS   SLURM_JOB_ID, SLURM_STEP_ID        first of SLURM_STEP_NODELIST
//
// How: ranks on one host meet at an abstract Unix socket named after job and user; the kernel vouches for the user.
//   Ranks on several hosts meet at TUTTI_MASTER_ADDR, or the launcher's address, at TUTTI_MASTER_PORT or a port derived
//   from the job. (Not at torchrun's MASTER_PORT: its own store listens there.) mpirun's own host is rank 0's, unless
//   it was started on a host that takes no part. Then rank 0 says so, and TUTTI_MASTER_ADDR is needed.
// Errors: invalid_argument names the variable that is missing or wrong.
// Threads: pure, but for launch_environment(), which looks at the process.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/bootstrap/bootstrap.h"

namespace tutti::bootstrap {

struct LaunchEnvironment {
  std::map<std::string, std::string> variables;
  long launcher_process = 0;  // parent of this session's leader, which launchers make for each rank; or of this process
  unsigned user = 0;
  std::vector<std::string> launcher_command = {};  // of launcher_process, its words
};

/// Returns that of this process.
LaunchEnvironment launch_environment();

struct LaunchPlace {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;          // ranks on this host; 0 when the launcher does not tell
  bool one_host = true;        // all ranks are on this host
  std::string job;             // differs between jobs of one user that run at the same time
  std::string master_address;  // or several of the same host, with commas between them
  int master_port = 0;         // 0: derived from the job
  std::string launcher = "none";
};

/// Returns rank 0 of 1 for a process without a launcher. Errors: invalid_argument (names the variable that is missing
/// or wrong).
Result<LaunchPlace> launch_place(const LaunchEnvironment& launch_environment);

/// Returns the job's server and secret: from `secret_text` (TUTTI_SECRET) or, when empty, derived from job and user. A
/// derived secret keeps jobs apart, but over TCP a client may guess it: set TUTTI_SECRET on networks that are not
/// trusted. Errors: invalid_argument (several hosts and no address).
Result<JoinInfo> join_info_of(const LaunchPlace& place, const std::string& secret_text, unsigned user);

/// Returns the first host of Slurm's list: "node[07-09,12],login" gives "node07".
std::string first_host(const std::string& host_list);

}  // namespace tutti::bootstrap
