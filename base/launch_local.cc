#include "base/launch_local.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <thread>
#include <utility>

#include "base/cores.h"

namespace tutti {
namespace {

constexpr const char* kLaunched = "TUTTI_LAUNCHED";
/// Where a job of ours that may be around us meets: this one needs no port (transport/bootstrap/environment.h).
constexpr std::array kOfSeveralHosts = {"TUTTI_MASTER_ADDR", "TUTTI_MASTER_PORT"};
constexpr std::chrono::seconds kGrace{10};  // for the others, after the first failure

std::string random_word() {
  std::array<unsigned char, 32> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) return {};
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

bool enough_cores(const LocalLaunch& launch, const std::vector<int>& cores) {
  return static_cast<std::size_t>(launch.ranks) * static_cast<std::size_t>(launch.cores_per_rank) <= cores.size();
}

using Variables = std::vector<std::pair<std::string, std::string>>;

/// No `cores`: anywhere.
pid_t start(const std::vector<std::string>& command, const Variables& variables, std::span<const int> cores) {
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // it died before prctl
  if (!cores.empty()) bind_to(cores);
  for (const char* name : kOfSeveralHosts) unsetenv(name);
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  execvp(argv[0], argv.data());
  std::perror(argv[0]);
  _exit(127);
}

int exit_status(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

/// Waits for all; see launch_local().
int wait_for(std::vector<pid_t> children) {
  int result = 0;
  auto deadline = std::chrono::steady_clock::time_point::max();
  bool killed = false;
  while (!children.empty()) {
    int status = 0;
    const bool failed = result != 0;
    const pid_t ended = waitpid(-1, &status, failed && !killed ? WNOHANG : 0);
    if (ended > 0) {
      std::erase(children, ended);
      if (result == 0) result = exit_status(status);
      if (!failed && result != 0) deadline = std::chrono::steady_clock::now() + kGrace;
    } else if (ended < 0 && errno == ECHILD) {
      break;
    } else if (std::chrono::steady_clock::now() > deadline) {
      for (const pid_t child : children) kill(child, SIGKILL);
      killed = true;
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  return result;
}

}  // namespace

bool is_launched() {
  constexpr std::array kSigns = {kLaunched,  "TUTTI_SIZE", "OMPI_COMM_WORLD_SIZE",
                                 "PMI_SIZE", "WORLD_SIZE", "SLURM_STEP_NUM_TASKS"};
  return std::any_of(kSigns.begin(), kSigns.end(), [](const char* name) { return std::getenv(name) != nullptr; });
}

std::vector<std::string> mpi_command(const LocalLaunch& launch, const std::vector<std::string>& command) {
  std::vector<std::string> line;
  if (launch.backend == "openmpi") {
    line = {"mpirun.openmpi", "--oversubscribe"};
    // Else each rank has one core, which all its threads would share.
    if (launch.cores_per_rank > 1) line.insert(line.end(), {"--bind-to", "none"});
    if (geteuid() == 0) line.emplace_back("--allow-run-as-root");
  } else {
    line = {"mpiexec.mpich"};
    if (launch.cores_per_rank == 1 && enough_cores(launch, allowed_cores())) {
      line.insert(line.end(), {"-bind-to", "core"});
    }
  }
  line.insert(line.end(), {"-n", std::to_string(launch.ranks)});
  line.insert(line.end(), command.begin(), command.end());
  return line;
}

int launch_local(const LocalLaunch& launch, const std::vector<std::string>& command) {
  if (launch.backend == "openmpi" || launch.backend == "mpich") {
    const pid_t child = start(mpi_command(launch, command), {{kLaunched, "1"}}, {});
    if (child > 0) return wait_for({child});
    std::perror("fork");
    return 2;
  }
  const Variables shared{{kLaunched, "1"},
                         {"TUTTI_SIZE", std::to_string(launch.ranks)},
                         {"TUTTI_LOCAL_SIZE", std::to_string(launch.ranks)},
                         {"TUTTI_JOB", random_word()},
                         {"TUTTI_SECRET", random_word()}};
  const std::vector<int> cores = allowed_cores();
  const auto own = static_cast<std::size_t>(launch.cores_per_rank);
  const bool bound = launch.backend == "tutti" && enough_cores(launch, cores);
  std::vector<pid_t> children;
  for (int rank = 0; rank < launch.ranks; ++rank) {
    Variables variables = shared;
    variables.emplace_back("TUTTI_RANK", std::to_string(rank));
    variables.emplace_back("TUTTI_LOCAL_RANK", std::to_string(rank));
    const auto first = static_cast<std::size_t>(rank) * own;
    const pid_t child =
        start(command, variables, bound ? std::span(cores).subspan(first, own) : std::span<const int>());
    if (child < 0) {
      std::perror("fork");
      for (const pid_t other : children) kill(other, SIGKILL);
      wait_for(children);
      return 2;
    }
    children.push_back(child);
  }
  return wait_for(std::move(children));
}

}  // namespace tutti
