// Runs the built benchmarks as a user does.
#pragma once

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <string>

namespace tutti::perf {

struct Outcome {
  int status = -1;
  std::string text;  // standard output and error
};

inline std::filesystem::path build_folder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path();
}

inline Outcome run_program(const std::string& name, const std::string& arguments) {
  // Ranks of this test must not look like ranks of a launcher around it.
  const std::string line = "env -u TUTTI_LAUNCHED -u TUTTI_RANK -u TUTTI_SIZE timeout 120 " +
                           (build_folder() / "bin" / name).string() + " " + arguments + " 2>&1";
  Outcome outcome;
  FILE* pipe = popen(line.c_str(), "r");
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> piece;
  while (std::fgets(piece.data(), piece.size(), pipe) != nullptr) outcome.text += piece.data();
  const int status = pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  return outcome;
}

inline constexpr std::array kPrograms = {"all_reduce_perf", "reduce_scatter_perf", "all_gather_perf",
                                         "broadcast_perf",  "reduce_perf",         "alltoall_perf",
                                         "gather_perf",     "scatter_perf",        "sendrecv_perf"};

}  // namespace tutti::perf
