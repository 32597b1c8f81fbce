#include "training/trainers/launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <thread>
#include <vector>

#include "launch/launch_local.h"
#include "launch/launcher.h"
#include "tutti/tutti.hpp"

namespace tutti::training {

int threads_of_each(int asked, int ranks) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return asked > 0 ? asked : std::max(1, cores / ranks);
}

bool starts_ranks_of(const char* program, int ranks) {
  if (ranks == 0) return false;
  const Result<bool> starts = starts_ranks("--ranks", ranks);
  if (!starts.ok()) throw Error(starts.status().code(), fmt::format("{}: {}", program, starts.status().message()));
  return starts.value();
}

int launch_ranks(int ranks, const std::string& backend, int threads, int argc, char** argv) {
  std::vector<std::string> words(argv, argv + argc);
  words[0] = std::filesystem::read_symlink("/proc/self/exe");
  // A rank sees only the cores that it is bound to, so it cannot tell how many threads are its due.
  words.insert(words.end(), {"--threads", std::to_string(threads)});
  return launch_local({ranks, backend, threads}, words);
}

}  // namespace tutti::training
