#include "training/trainers/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <thread>
#include <vector>

#include "base/option_checks.h"
#include "base/standard_streams.h"
#include "launch/launch_local.h"
#include "launch/launcher.h"
#include "training/trainers/progress.h"
#include "tutti/tutti.hpp"

namespace tutti::training {
namespace {

/// Returns true if `program` starts the ranks that --ranks asks for, false if it is one of them. Errors: tutti::Error,
/// where another launcher has started it as one of several.
bool starts_ranks_of(const char* program, int ranks) {
  if (ranks == 0) return false;
  const Result<bool> starts = starts_ranks("--ranks", ranks);
  if (!starts.ok()) throw Error(starts.status().code(), fmt::format("{}: {}", program, starts.status().message()));
  return starts.value();
}

/// Runs this command line as local processes. Returns the exit status.
int launch_ranks(const TrainerOptions& options, int argc, char** argv) {
  const int threads = threads_of_each(options.threads, options.ranks);
  std::vector<std::string> words(argv, argv + argc);
  words[0] = std::filesystem::read_symlink("/proc/self/exe");
  // A rank sees only the cores that it is bound to, so it cannot tell how many threads are its due.
  words.insert(words.end(), {"--threads", std::to_string(threads)});
  return launch_local({options.ranks, options.backend, threads}, words);
}

}  // namespace

void add_trainer_options(CLI::App& app, TrainerOptions& options) {
  const std::string parallelism = "Parallelism", output = "Output";
  app.add_option("--ranks", options.ranks, "Start this many local processes (not needed under mpirun or torchrun)")
      ->check(whole_number(1, kMostLocalRanks));
  app.add_option("--threads", options.threads, "Of torch, per rank; 0: cores / ranks")
      ->check(whole_number(0))
      ->take_last()
      ->capture_default_str();
  app.add_option("--backend", options.backend, "What runs the collectives")
      ->check(CLI::IsMember({"tutti", "openmpi", "mpich", "gloo", "nccl"}))
      ->capture_default_str()
      ->group(parallelism);
  app.add_option("--device", options.device, "Where tensors are")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str()
      ->group(parallelism);
  app.add_option("--csv", options.csv, "Write metrics of every step to this file")->group(output);
  app.add_option("--json-lines", options.json_lines, "The same as one JSON object per line")->group(output);
  app.add_option("--plot", options.plot, "Draw the loss curve to this PNG")->group(output);
}

int threads_of_each(int asked, int ranks) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return asked > 0 ? asked : std::max(1, cores / ranks);
}

int run_trainer(const Trainer& trainer, CLI::App& app, int argc, char** argv) {
  open_standard_streams();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return end_of_output(trainer.name, app.exit(error));
  }
  try {
    const TrainerOptions& options = trainer.options;
    const bool starts = starts_ranks_of(trainer.name, options.ranks);
    if (starts || !is_launched()) trainer.check();
    if (starts && options.ranks > 1) return launch_ranks(options, argc, argv);
    return end_of_output(trainer.name, trainer.run_rank());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

void plot_if_asked(const TrainerOptions& options) {
  if (options.plot.empty() || !plot_loss(options.csv_file(), options.plot)) return;
  std::printf("loss curve in %s\n", options.plot.c_str());
}

}  // namespace tutti::training
