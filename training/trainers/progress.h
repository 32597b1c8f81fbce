// What a trainer shows while it runs: a progress bar, metrics as CSV and JSON lines, and the loss curve as PNG.
//
//   Progress progress({.program = "train_gpt", .steps = 200, .unit = "tokens", .csv = "loss.csv"});
//   progress.show({.step = 0, .loss = 5.5, .units = 768, .seconds = 0.02});
//   std::puts(progress.summary().c_str());
//
// CSV: a header, then a line for each step: step,loss,learning_rate,gradient_norm,step_ms,wait_ms,tokens_per_s,
//   communication_share,bytes_sent. JSON lines: an object for each step, with the same names; null for what is not
//   finite.
// Errors: tutti::Error naming the file that cannot be written. Threads: one.
#pragma once

#include <chrono>
#include <cstdint>
#include <fstream>
#include <string>

namespace tutti::training {

struct StepMetrics {
  int step = 0;
  double loss = 0;  // mean over the ranks
  double learning_rate = 0;
  double gradient_norm = 0;
  double units = 0;  // tokens or images, of all ranks
  double seconds = 0;
  double wait_seconds = 0;       // of rank 0, for communication alone
  std::uint64_t bytes_sent = 0;  // by rank 0, in forward and backward
};

inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

struct ProgressOptions {
  std::string program;  // who errors say it was
  int steps = 1;
  std::string unit = "tokens";
  std::string csv, json_lines;  // files; empty: none
};

/// On a terminal one line that is rewritten; else a line for every tenth of the run.
class Progress {
 public:
  explicit Progress(const ProgressOptions& options);
  void show(const StepMetrics& step);
  /// Mean over the run, its first steps (which allocate) left out.
  std::string summary() const;
  /// Whether the files have all of it; else says which one has not, on standard error.
  bool all_written();

 private:
  void write(const StepMetrics& step);

  ProgressOptions options_;
  bool terminal_;
  std::ofstream csv_, json_lines_;
  double smooth_seconds_ = 0, smooth_wait_ = 0;
  double total_seconds_ = 0, total_wait_ = 0, total_units_ = 0;
  int counted_ = 0;
};

/// Draws the CSV's loss over steps with Python and matplotlib, as a child process. False, and why on standard error,
/// when there is no Python with matplotlib.
bool plot_loss(const std::string& csv, const std::string& png);

}  // namespace tutti::training
