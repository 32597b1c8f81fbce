#include "launch/launch_local.h"

#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <utility>

#include "base/cores.h"
#include "base/standard_streams.h"
#include "launch/launcher.h"

namespace tutti {
namespace {

/// Variables of a surrounding job, removed since these ranks meet without a port (transport/bootstrap/environment.h).
constexpr std::array kOfSeveralHosts = {"TUTTI_MASTER_ADDR", "TUTTI_MASTER_PORT"};
/// The time after the first failure in which the other ranks may fail by themselves, and then end in order.
constexpr std::chrono::milliseconds kToFail{1500};
constexpr std::chrono::milliseconds kToEnd{500};
constexpr std::array kPassedOn = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

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

/// While it lives, this thread takes SIGCHLD and the signals to pass on through next() alone. Signals that this process
/// ignores stay ignored, except SIGCHLD: otherwise a child would leave no status.
class HeldSignals {
 public:
  HeldSignals() {
    sigemptyset(&held_);
    sigaddset(&held_, SIGCHLD);
    for (const int number : kPassedOn) {
      struct sigaction now {};
      if (sigaction(number, nullptr, &now) == 0 && now.sa_handler != SIG_IGN) sigaddset(&held_, number);
    }
    struct sigaction ordinary {};
    ordinary.sa_handler = SIG_DFL;
    sigaction(SIGCHLD, &ordinary, &child_before_);
    pthread_sigmask(SIG_BLOCK, &held_, &mask_before_);
  }
  ~HeldSignals() { restore(); }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  /// Restores the signals; called in a child before it becomes the program.
  void restore() const {
    sigaction(SIGCHLD, &child_before_, nullptr);
    pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
  }

  /// Waits for a signal, at most for `limit`. Returns the number of a signal that a process has sent, else 0. A
  /// terminal sends its signals to all processes of its foreground itself.
  int next(std::chrono::milliseconds limit) const {
    const timespec most{limit.count() / 1000, limit.count() % 1000 * 1'000'000};
    siginfo_t info{};
    const int number = sigtimedwait(&held_, &info, &most);
    return number > 0 && number != SIGCHLD && info.si_code <= 0 ? number : 0;
  }

 private:
  sigset_t held_{};
  sigset_t mask_before_{};
  struct sigaction child_before_ {};
};

/// `cores`: where it runs; empty: anywhere.
pid_t start(const std::vector<std::string>& command, const Variables& variables, std::span<const int> cores,
            const HeldSignals& signals) {
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // it died before prctl
  signals.restore();
  if (!cores.empty()) bind_to(cores);
  for (const char* name : kOfSeveralHosts) unsetenv(name);
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  execvp(argv[0], argv.data());
  std::perror(argv[0]);
  _exit(127);
}

int exit_status(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

/// Prints a line for a rank that a signal ended, since it wrote none itself.
void report_signal(int status, std::size_t rank, std::size_t ranks) {
  if (!WIFSIGNALED(status) || ranks == 1) return;
  const int number = WTERMSIG(status);
  fmt::print(stderr, "rank {} of {} was ended by signal {} ({}){}\n", rank, ranks, number, strsignal(number),
             number == SIGKILL ? ", as the kernel does where memory runs out" : "");
}

/// The processes of the ranks, until all have ended; see launch_local().
class Ranks {
 public:
  using Clock = std::chrono::steady_clock;

  void add(pid_t child) { children_.push_back(child); }
  /// Ends the started ranks and returns `status`.
  int give_up(int status, const HeldSignals& signals) {
    result_ = status;
    signal(SIGKILL);
    return wait(signals);
  }
  void signal(int number) const {
    for (const pid_t child : children_) {
      if (child > 0) kill(child, number);
    }
  }

  int wait(const HeldSignals& signals) {
    for (;;) {
      reap();
      if (left() == 0) return result_;
      end_the_others();
      if (const int number = signals.next(kLookEvery); number != 0) signal(number);
    }
  }

 private:
  static constexpr std::chrono::milliseconds kLookEvery{100};

  std::size_t left() const {
    std::size_t count = 0;
    for (const pid_t child : children_) count += child > 0 ? 1 : 0;
    return count;
  }

  /// If several have ended since the last call, a killed one counts: the others may have failed because of it.
  void reap() {
    const bool failed_before = result_ != 0;
    for (std::size_t rank = 0; rank < children_.size(); ++rank) {
      int status = 0;
      if (children_[rank] <= 0) continue;
      const pid_t ended = waitpid(children_[rank], &status, WNOHANG);
      if (ended == 0 || (ended < 0 && errno == EINTR)) continue;
      children_[rank] = 0;
      if (ended < 0 || failed_before || exit_status(status) == 0) continue;
      if (result_ == 0 || WIFSIGNALED(status)) {
        result_ = exit_status(status);
        report_signal(status, rank, children_.size());
      }
    }
    if (!failed_before && result_ != 0) failed_at_ = Clock::now();
  }

  void end_the_others() {
    if (result_ == 0) return;
    const auto since = Clock::now() - failed_at_;
    if (since >= kToFail && !asked_) signal(SIGTERM);
    asked_ = asked_ || since >= kToFail;
    if (since >= kToFail + kToEnd) signal(SIGKILL);
  }

  std::vector<pid_t> children_;  // 0: has ended
  int result_ = 0;
  Clock::time_point failed_at_{};
  bool asked_ = false;
};

int cannot_start(int rank, int ranks) {
  fmt::print(stderr, "cannot start rank {} of {}: {} (processes; ulimit -u, pids.max)\n", rank, ranks,
             std::strerror(errno));
  return 2;
}

}  // namespace

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
  open_standard_streams();
  const HeldSignals signals;
  Ranks ranks;
  if (launch.backend == "openmpi" || launch.backend == "mpich") {
    const pid_t child = start(mpi_command(launch, command), {{kLaunchedVariable, "1"}}, {}, signals);
    if (child < 0) return cannot_start(0, 1);
    ranks.add(child);
    return ranks.wait(signals);
  }
  const Variables shared{{kLaunchedVariable, "1"},
                         {"TUTTI_SIZE", std::to_string(launch.ranks)},
                         {"TUTTI_LOCAL_SIZE", std::to_string(launch.ranks)},
                         {"TUTTI_JOB", random_word()},
                         {"TUTTI_SECRET", random_word()}};
  const std::vector<int> cores = allowed_cores();
  const auto own = static_cast<std::size_t>(launch.cores_per_rank);
  const bool bound = launch.backend == "tutti" && enough_cores(launch, cores);
  for (int rank = 0; rank < launch.ranks; ++rank) {
    Variables variables = shared;
    variables.emplace_back("TUTTI_RANK", std::to_string(rank));
    variables.emplace_back("TUTTI_LOCAL_RANK", std::to_string(rank));
    const auto first = static_cast<std::size_t>(rank) * own;
    const pid_t child =
        start(command, variables, bound ? std::span(cores).subspan(first, own) : std::span<const int>(), signals);
    if (child < 0) {
      return ranks.give_up(cannot_start(rank, launch.ranks), signals);
    }
    ranks.add(child);
  }
  return ranks.wait(signals);
}

}  // namespace tutti
