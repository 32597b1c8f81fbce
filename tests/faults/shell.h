// Runs shell lines as a user's, with the built programs as $P; what they wrote, and how they ended.
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/clock.h"

namespace tutti::testing {

struct Ran {
  int status = -1;   // 128 + the signal that ended it
  std::string text;  // standard output and error
  double seconds = 0;
};

inline std::string programs_folder() {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "bin").string();
}

/// Runs `line` by sh, without variables of a launcher around this test. Every wait has a deadline of 20 s. A line that
/// runs for more than 120 s is killed.
inline Ran run_shell(const std::string& line) {
  const std::int64_t began = now_ns();
  const std::string whole =
      "unset TUTTI_LAUNCHED TUTTI_RANK TUTTI_SIZE TUTTI_LOCAL_RANK TUTTI_LOCAL_SIZE; "
      "export TUTTI_TIMEOUT=${TUTTI_TIMEOUT-20s} P=" +
      programs_folder() + "; " + line;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], 1);
    dup2(ends[1], 2);
    execl("/usr/bin/timeout", "timeout", "-k", "2", "120", "/bin/sh", "-c", whole.c_str(), nullptr);
    _exit(127);
  }
  close(ends[1]);
  Ran ran;
  char buffer[4096];
  for (ssize_t got; (got = read(ends[0], buffer, sizeof buffer)) > 0;)
    ran.text.append(buffer, static_cast<std::size_t>(got));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  ran.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  ran.seconds = static_cast<double>(now_ns() - began) * 1e-9;
  return ran;
}

}  // namespace tutti::testing
