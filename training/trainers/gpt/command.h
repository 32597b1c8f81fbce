// The command line of train_gpt.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "training/trainers/gpt/options.h"

namespace tutti::training {

struct GptCommand {
  GptRunOptions run;
  int ranks = 0;  // to start; 0: not given
  int threads = 0;
  std::string parallel;     // as given; empty: by the mesh
  std::string mesh;         // as given; empty: by `parallel`
  std::string of_pipeline;  // a word that was given and only means something for a pipeline
  std::string precision = "fp32", exchange = "auto";
  std::string backend = "tutti", device = "cpu", algorithm;
  std::vector<std::string> files;
  std::string csv, json_lines, plot, timeline;
  bool check = false, check_batch = false;
};

void add_options(CLI::App& app, GptCommand& command);

/// What the words mean on so many ranks: fills command.run, its mesh among it. Errors: tutti::Error, invalid_argument,
/// one sentence: words that contradict each other, a device or a backend that is not there.
void interpret(GptCommand& command, int ranks);

}  // namespace tutti::training
