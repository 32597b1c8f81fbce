#include "launch/launcher.h"

#include <fmt/format.h>

#include <cstdlib>

namespace tutti {
namespace {

std::string of_process(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

}  // namespace

const Launcher* launcher_of(const Variable& variable) {
  const auto has = [&](const char* name) { return !variable(name).empty(); };
  if (has(kTuttiLauncher.rank) || has(kTuttiLauncher.size)) return &kTuttiLauncher;
  if (has(kTorchrun.rank) && has(kTorchrun.size)) return &kTorchrun;
  if (has(kOpenMpi.rank)) return &kOpenMpi;
  // srun --mpi=pmi2 speaks MPICH's language; only MPICH's own launcher knows the local numbers.
  const bool of_srun =
      has("SLURM_STEP_ID") && variable(kSlurm.rank) == variable(kMpich.rank) && !has(kMpich.local_size);
  if (has(kMpich.rank) && !of_srun) return &kMpich;
  // A batch script has SLURM_PROCID too, though srun has not started it: only steps count.
  if (has(kSlurm.rank) && has("SLURM_STEP_ID")) return &kSlurm;
  return nullptr;
}

Result<bool> starts_ranks(const std::string& option, int ranks, const Variable& variable) {
  const Launcher* launcher = nullptr;  // the innermost that tells both
  for (const Launcher* one : {&kTuttiLauncher, &kTorchrun, &kOpenMpi, &kMpich, &kSlurm}) {
    const bool whole = !variable(one->rank).empty() && !variable(one->size).empty();
    const bool counts = one != &kSlurm || !variable("SLURM_STEP_ID").empty();
    if (launcher == nullptr && whole && counts) launcher = one;
  }
  const std::string rank = launcher == nullptr ? "" : variable(launcher->rank);
  const std::string size = launcher == nullptr ? "" : variable(launcher->size);
  const bool launched_here = !variable(kLaunchedVariable).empty();
  if (launched_here && (size.empty() || size == std::to_string(ranks))) return false;
  const bool one_of_several = !rank.empty() && !size.empty() && size != "1";
  if (!launched_here && !one_of_several) return true;
  return invalid_argument(
      fmt::format("{} {} starts ranks, and {}={}, {}={} say that {} has started this process as one; "
                  "leave {} out, or unset these variables",
                  option, ranks, launcher->rank, rank, launcher->size, size, launcher->name, option));
}

Result<bool> starts_ranks(const std::string& option, int ranks) { return starts_ranks(option, ranks, of_process); }

bool is_launched() {
  if (!of_process(kLaunchedVariable).empty()) return true;
  const Launcher* launcher = launcher_of(of_process);
  return launcher != nullptr && !of_process(launcher->rank).empty();
}

}  // namespace tutti
