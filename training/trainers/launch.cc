#include "training/trainers/launch.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

namespace tutti::training {
namespace {

using Variables = std::vector<std::pair<std::string, std::string>>;
constexpr std::chrono::seconds kGrace{10};

/// A port of the loopback interface that was free a moment ago; 0: the library chooses.
int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  const bool found = fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                     getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  if (fd >= 0) close(fd);
  return found ? ntohs(address.sin_port) : 0;
}

std::string fresh_secret() {
  std::uint64_t words[4] = {};
  if (getrandom(words, sizeof words, 0) != sizeof words) return {};
  return fmt::format("{:016x}{:016x}{:016x}{:016x}", words[0], words[1], words[2], words[3]);
}

pid_t start(const std::vector<std::string>& command, const Variables& variables) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // it died before prctl
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  execvp(arguments[0], arguments.data());
  std::perror(arguments[0]);
  _exit(127);
}

int wait_for(std::vector<pid_t> children) {
  int result = 0;
  std::chrono::steady_clock::time_point deadline;
  while (!children.empty()) {
    int status = 0;
    const pid_t ended = waitpid(-1, &status, result == 0 ? 0 : WNOHANG);
    if (ended > 0) {
      std::erase(children, ended);
      if (result != 0 || status == 0) continue;
      result = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      deadline = std::chrono::steady_clock::now() + kGrace;
    } else if (ended < 0) {
      break;
    } else if (std::chrono::steady_clock::now() > deadline) {
      for (const pid_t child : children) kill(child, SIGKILL);
      while (waitpid(-1, &status, 0) > 0) continue;
      break;
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  return result;
}

}  // namespace

int launch_ranks(int ranks, const std::string& backend, const std::vector<std::string>& command) {
  if (backend == "openmpi" || backend == "mpich") {
    std::vector<std::string> line{backend == "openmpi" ? "mpirun.openmpi" : "mpiexec.mpich"};
    // Without --bind-to none Open MPI gives each rank one core, and torch's threads would share it.
    if (backend == "openmpi") line.insert(line.end(), {"--oversubscribe", "--bind-to", "none"});
    if (backend == "openmpi" && geteuid() == 0) line.emplace_back("--allow-run-as-root");
    line.insert(line.end(), {"-n", std::to_string(ranks)});
    line.insert(line.end(), command.begin(), command.end());
    return wait_for({start(line, {{"TUTTI_LAUNCHED", "1"}})});
  }
  const Variables shared{{"TUTTI_LAUNCHED", "1"},
                         {"TUTTI_SIZE", std::to_string(ranks)},
                         {"TUTTI_LOCAL_SIZE", std::to_string(ranks)},
                         {"TUTTI_MASTER_ADDR", "127.0.0.1"},
                         {"TUTTI_MASTER_PORT", std::to_string(free_port())},
                         {"TUTTI_SECRET", fresh_secret()}};
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    Variables variables = shared;
    variables.emplace_back("TUTTI_RANK", std::to_string(rank));
    variables.emplace_back("TUTTI_LOCAL_RANK", std::to_string(rank));
    children.push_back(start(command, variables));
    if (children.back() < 0) {
      std::perror("fork");
      return 1;  // those that were started die with this process
    }
  }
  return wait_for(std::move(children));
}

bool is_a_rank() {
  for (const char* name :
       {"TUTTI_LAUNCHED", "TUTTI_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  return false;
}

}  // namespace tutti::training
