// train_gpt: trains a small GPT on bytes of any text files, on N ranks.
//
//   train_gpt --ranks 2 --parallel ddp --steps 500 --csv loss.csv --plot loss.png
//   train_gpt --ranks 2 --deterministic --check        and compare with one process that does all the work
//   mpirun -n 2 train_gpt                              ranks from any launcher that the library knows
//
// Exit status: 0 good, 1 an error or a failed check.
#include <fmt/format.h>
#include <malloc.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <optional>
#include <thread>

#include "base/launch_local.h"
#include "training/trainers/check.h"
#include "training/trainers/gpt_run.h"
#include "training/trainers/progress.h"

namespace tutti::training {
namespace {

struct Arguments {
  GptRunOptions run;
  int ranks = 1;
  int threads = 0;
  std::string parallel = "ddp";
  std::string backend = "tutti";
  std::vector<std::string> files;
  std::string csv, plot;
  bool check = false, check_batch = false;
};

/// Text that every Debian has: the licences, each once (some are links to others).
std::vector<std::string> licence_texts() {
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/usr/share/common-licenses", error)) {
    if (entry.is_regular_file() && !entry.is_symlink()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());  // the same stream on every machine
  return files;
}

void add_options(CLI::App& app, Arguments& arguments) {
  GptRunOptions& run = arguments.run;
  const auto positive = CLI::PositiveNumber;
  app.add_option("--ranks", arguments.ranks, "Start this many local processes (not needed under mpirun or torchrun)")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--parallel", arguments.parallel, "How the ranks share the work")
      ->check(CLI::IsMember({"ddp"}))
      ->capture_default_str();
  app.add_option("--backend", arguments.backend, "What runs the collectives")
      ->check(CLI::IsMember({"tutti", "openmpi", "mpich", "gloo"}))
      ->capture_default_str();
  app.add_option("--data", arguments.files, "Text files (default: /usr/share/common-licenses)");
  app.add_option("--steps", run.steps, "Optimiser steps")->check(positive)->capture_default_str();
  app.add_option("--batch", run.batch, "Rows per rank and micro-batch")->check(positive)->capture_default_str();
  app.add_option("--accumulate", run.accumulate, "Micro-batches per step")->check(positive)->capture_default_str();
  app.add_option("--lr", run.learning_rate, "Highest learning rate")->check(positive)->capture_default_str();
  app.add_option("--clip", run.clip, "Largest norm of the gradient; 0: any")->capture_default_str();
  app.add_option("--seed", run.seed, "For parameters and rows")->capture_default_str();
  app.add_option("--layers", run.model.layers, "Of the model")->check(positive)->capture_default_str();
  app.add_option("--heads", run.model.heads, "Of attention")->check(positive)->capture_default_str();
  app.add_option("--width", run.model.width, "Of the model; a multiple of --heads")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--context", run.model.context, "Bytes per row")->check(positive)->capture_default_str();
  app.add_option("--threads", arguments.threads, "Of torch, per rank; 0: cores / ranks")
      ->check(CLI::NonNegativeNumber)
      ->take_last()
      ->capture_default_str();
  app.add_flag("--deterministic", run.ddp.deterministic, "Same bits whatever algorithm and placement");
  app.add_flag("--check", arguments.check,
               "Afterwards train in one process and compare (takes as long again, times ranks)");
  app.add_flag("--check-batch", arguments.check_batch,
               "As --check, with all rows in one large batch, within a tolerance");
  app.add_option("--csv", arguments.csv, "Write metrics of every step to this file");
  app.add_option("--plot", arguments.plot, "Draw the loss curve to this PNG");
}

/// What rank 0 does when the others have gone home. Returns the exit status.
int look_back(const Arguments& arguments, const ByteText& text, const GptResult& result, const std::string& csv) {
  std::printf("validation loss %.4f\n", validation_loss(arguments.run, text, result.parameters));
  if (!arguments.plot.empty() && plot_loss(csv, arguments.plot)) {
    std::printf("loss curve in %s\n", arguments.plot.c_str());
  }
  bool good = true;
  const auto tell = [&](const CheckResult& check) {
    std::printf("%s\n", check.sentence.c_str());
    std::fflush(stdout);
    good = good && check.good;
  };
  if (arguments.check || arguments.check_batch) std::printf("training again in one process, to compare ...\n");
  std::fflush(stdout);
  if (arguments.check_batch) tell(check_against_batch(arguments.run, text, result));
  if (arguments.check) tell(check_against_shards(arguments.run, text, result));
  return good ? 0 : 1;
}

int threads_of_each(const Arguments& arguments, int ranks) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return arguments.threads > 0 ? arguments.threads : std::max(1, cores / ranks);
}

// Every step frees and takes again the same tensors. glibc gives their pages back to the kernel in between, and each
// comes back with a page fault: a third of a step of a wide model.
void keep_freed_memory() {
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  mallopt(M_MMAP_THRESHOLD, std::numeric_limits<int>::max());
}

int run_rank(Arguments arguments) {
  keep_freed_memory();
  if (arguments.files.empty()) arguments.files = licence_texts();
  const ByteText text = ByteText::load(arguments.files);
  Options options;
  options.backend = arguments.backend;
  options.deterministic = options.deterministic || arguments.run.ddp.deterministic;
  Communicator comm = Communicator::from_environment(options);
  const int rank = comm.rank(), ranks = comm.size();
  torch::set_num_threads(threads_of_each(arguments, ranks));

  std::optional<Progress> progress;
  std::string csv = arguments.csv;
  if (rank == 0) {
    if (csv.empty() && !arguments.plot.empty()) csv = arguments.plot + ".csv";
    const GptRunOptions& run = arguments.run;
    progress.emplace(run.steps, static_cast<double>(ranks) * run.batch * run.accumulate * run.model.context, csv);
    std::printf(
        "train_gpt: %d rank%s, %s over %s, %zu bytes of text, batch %d x %d x %d bytes, %d torch thread%s per rank\n",
        ranks, ranks == 1 ? "" : "s", arguments.parallel.c_str(), arguments.backend.c_str(), text.train().size(), ranks,
        run.batch * run.accumulate, run.model.context, torch::get_num_threads(),
        torch::get_num_threads() == 1 ? "" : "s");
    std::fflush(stdout);
  }
  const GptResult result =
      train_with_ddp(arguments.run, text, std::move(comm), [&](const GptStep& step) { progress->show(step); });
  if (rank != 0) return 0;
  std::printf("%s\n", progress->summary().c_str());
  return look_back(arguments, text, result, csv);
}

}  // namespace
}  // namespace tutti::training

int main(int argc, char** argv) {
  using namespace tutti::training;
  Arguments arguments;
  CLI::App app("Trains a byte-level GPT on any text, on several ranks.");
  add_options(app, arguments);
  CLI11_PARSE(app, argc, argv);
  try {
    if (arguments.ranks > 1 && !tutti::is_launched()) {
      std::vector<std::string> command(argv, argv + argc);
      command[0] = std::filesystem::read_symlink("/proc/self/exe");
      // A rank sees only the cores that it is bound to, so it cannot tell how many threads are its due.
      const int threads = threads_of_each(arguments, arguments.ranks);
      command.insert(command.end(), {"--threads", std::to_string(threads)});
      return tutti::launch_local({arguments.ranks, arguments.backend, threads}, command);
    }
    return run_rank(std::move(arguments));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
