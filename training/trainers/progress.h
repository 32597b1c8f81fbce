// What a trainer shows while it runs: a progress bar, metrics as CSV and the loss curve as PNG.
#pragma once

#include <fstream>
#include <string>

#include "training/trainers/gpt_run.h"

namespace tutti::training {

/// On a terminal one line that is rewritten; else a line for every tenth of the run.
class Progress {
 public:
  /// `csv` may be empty. Errors: tutti::Error naming the file that cannot be written.
  Progress(int steps, double tokens_per_step, const std::string& csv);
  void show(const GptStep& step);
  /// Mean over the run, its first steps (which allocate) left out.
  std::string summary() const;

 private:
  int steps_;
  double tokens_per_step_;
  bool terminal_;
  std::ofstream csv_;
  double smooth_seconds_ = 0, smooth_wait_ = 0;
  double total_seconds_ = 0, total_wait_ = 0;
  int counted_ = 0;
};

/// Draws the CSV's loss over steps with Python and matplotlib, as a child process. False, and why on standard error,
/// when there is no Python with matplotlib.
bool plot_loss(const std::string& csv, const std::string& png);

}  // namespace tutti::training
