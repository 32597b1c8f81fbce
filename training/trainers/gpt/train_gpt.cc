// train_gpt: trains a small GPT on bytes of any text files, on N ranks.
//
//   train_gpt --ranks 2 --parallel ddp --steps 500 --csv loss.csv --plot loss.png
//   train_gpt --ranks 2 --deterministic --check        and compare with one process that does all the work
//   train_gpt --ranks 4 --mesh fsdp=2,tp=2             a mesh of ranks
//   mpirun -n 2 train_gpt                              ranks from any launcher that the library knows
//
// The way through: command.cc (the command line), run.cc (the loop), strategy_*.cc (what ranks do), reference.cc
// (what one process does), check.cc (the comparison), expected_cost.cc and report.cc (costs).
// Exit status: 0 good, 1 an error or a failed check.
#include <fmt/format.h>
#include <malloc.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "training/pipeline/timeline.h"
#include "training/trainers/device.h"
#include "training/trainers/gpt/check.h"
#include "training/trainers/gpt/command.h"
#include "training/trainers/gpt/run.h"
#include "training/trainers/program.h"
#include "training/trainers/progress.h"

namespace tutti::training {
namespace {

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

/// Checks the files before a training whose figures would be lost.
void check_files(const GptCommand& command) {
  const std::pair<const char*, std::string> files[] = {{"--csv", command.csv},
                                                       {"--json-lines", command.json_lines},
                                                       {"--timeline", command.timeline},
                                                       {"--plot", command.plot.empty() ? "" : command.plot + ".csv"}};
  for (const auto& [option, path] : files) {
    if (path.empty() || std::ofstream(path, std::ios::app)) continue;
    throw Error(Code::system,
                fmt::format("train_gpt: {}: '{}' cannot be written: {}", option, path, std::strerror(errno)));
  }
}

/// Validates, plots and compares on rank 0, after the training. Returns the exit status.
int look_back(const GptCommand& command, const ByteText& text, const GptResult& result) {
  std::printf("validation loss %.4f\n", validation_loss(command.run, text, result.parameters));
  plot_if_asked(command);
  if (!command.timeline.empty()) {
    const PipelineMeasure& pipeline = result.pipeline;
    write_timeline(command.timeline, pipeline.schedule, pipeline.measured, pipeline.simulated);
    std::printf("timeline in %s\n", command.timeline.c_str());
  }
  bool good = true;
  const auto tell = [&](const CheckResult& check) {
    std::printf("%s\n", check.sentence.c_str());
    std::fflush(stdout);
    good = good && check.good;
  };
  if (command.check || command.check_batch) std::printf("training again in one process, to compare ...\n");
  std::fflush(stdout);
  if (command.check_batch) tell(check_against_batch(command.run, text, result));
  if (command.check) tell(check_against_ranks(command.run, text, result));
  return good ? 0 : 1;
}

// Every step frees and takes again the same tensors. glibc gives their pages back to the kernel in between, and each
// comes back with a page fault: a third of a step of a wide model.
void keep_freed_memory() {
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  mallopt(M_MMAP_THRESHOLD, std::numeric_limits<int>::max());
}

void introduce(const GptCommand& command, int ranks, const ByteText& text) {
  const GptRunOptions& run = command.run;
  const std::string& way = command.parallel;
  std::printf(
      "train_gpt: %d rank%s on %s, %s%s over %s, %zu bytes of text, batch %d x %d x %d bytes, %d torch thread%s per "
      "rank\n",
      ranks, ranks == 1 ? "" : "s", command.device.c_str(), to_text(run.mesh).c_str(),
      way.empty() ? "" : (" by " + way).c_str(), command.backend.c_str(), text.train().size(), run.mesh.data_ranks(),
      run.batch * run.passes(), run.model.context, torch::get_num_threads(), torch::get_num_threads() == 1 ? "" : "s");
  std::fflush(stdout);
}

int run_rank(GptCommand command) {
  keep_freed_memory();
  if (command.files.empty()) command.files = licence_texts();
  const ByteText text = ByteText::load(command.files);
  Options options;
  options.backend = command.backend;
  options.deterministic = options.deterministic || command.run.deterministic;
  if (!command.algorithm.empty()) options.algorithm = command.algorithm;
  Communicator comm = Communicator::from_environment(options);
  const int rank = comm.rank(), ranks = comm.size();
  interpret(command, ranks);
  if (rank == 0) check_files(command);
  torch::set_num_threads(threads_of_each(command.threads, ranks));
  command.run.device = choose_device(command.device, comm, options.deterministic);

  std::optional<Progress> progress;
  if (rank == 0) {
    progress.emplace(ProgressOptions{"train_gpt", command.run.steps, "tokens", command.csv_file(), command.json_lines});
    introduce(command, ranks, text);
  }
  const GptResult result =
      train_gpt(command.run, text, std::move(comm), [&](const StepMetrics& step) { progress->show(step); });
  if (rank != 0) return 0;
  std::printf("%s\n%s", progress->summary().c_str(), result.report.c_str());
  const int status = look_back(command, text, result);
  return progress->all_written() ? status : 1;
}

}  // namespace
}  // namespace tutti::training

int main(int argc, char** argv) {
  using namespace tutti::training;
  GptCommand command;
  CLI::App app("Trains a byte-level GPT on any text, on several ranks.");
  add_options(app, command);
  const auto check = [&] {
    GptCommand trial = command;
    interpret(trial, std::max(1, command.ranks));
    check_files(trial);
  };
  return run_trainer({"train_gpt", command, check, [&] { return run_rank(command); }}, app, argc, argv);
}
