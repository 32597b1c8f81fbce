// What the trainers share: the options that each of them has, and main().
//
//   struct Command : TrainerOptions { ... };
//   int main(int argc, char** argv) {
//     Command command;
//     CLI::App app("Trains ...");
//     add_trainer_options(app, command);
//     return run_trainer({"train_x", command, [&] { check(command); }, [&] { return run_rank(command); }}, app, argc,
//     argv);
//   }
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

namespace tutti::training {

struct TrainerOptions {
  int ranks = 0;    // to start; 0: not given
  int threads = 0;  // of torch, per rank; 0: cores / ranks
  std::string backend = "tutti", device = "cpu", precision = "fp32";
  std::string csv, json_lines, plot;
  bool check = false;

  /// Returns the file of the metrics: the given one, or with --plot alone one beside the picture. Empty: none.
  std::string csv_file() const { return csv.empty() && !plot.empty() ? plot + ".csv" : csv; }
};

/// Adds all of them but --precision and --check, whose help differs.
void add_trainer_options(CLI::App& app, TrainerOptions& options);

/// Returns the torch threads of each rank: `asked`, or with 0 its share of the cores.
int threads_of_each(int asked, int ranks);

struct Trainer {
  const char* name;  // begins its errors
  const TrainerOptions& options;
  std::function<void()> check;    // throws what is wrong with the options, once, before any rank starts
  std::function<int()> run_rank;  // returns the exit status
};

/// Parses the command line, then starts the ranks that --ranks asks for, or is one. Returns the exit status; errors go
/// to standard error.
int run_trainer(const Trainer& trainer, CLI::App& app, int argc, char** argv);

/// Draws the loss curve of the run, if --plot asks for one.
void plot_if_asked(const TrainerOptions& options);

}  // namespace tutti::training
