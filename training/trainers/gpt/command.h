// The command line of train_gpt.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "training/trainers/gpt/options.h"
#include "training/trainers/program.h"

namespace tutti::training {

struct GptCommand : TrainerOptions {
  GptRunOptions run;
  std::string parallel;     // as given; empty: by the mesh
  std::string mesh;         // as given; empty: by `parallel`
  std::string of_pipeline;  // a word that was given and only means something for a pipeline
  std::string exchange = "auto", algorithm, timeline;
  std::vector<std::string> files;
  bool check_batch = false;
};

void add_options(CLI::App& app, GptCommand& command);

/// Translates the words for so many ranks: fills command.run, its mesh among it. Errors: tutti::Error,
/// invalid_argument, one sentence: words that contradict each other, a device or a backend that is not there.
void interpret(GptCommand& command, int ranks);

}  // namespace tutti::training
