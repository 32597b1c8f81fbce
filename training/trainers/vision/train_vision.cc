// train_vision: trains an image classifier on N ranks: a small ResNet or a ViT with DDP or FSDP, or a ViT as
// a pipeline.
//
//   train_vision --ranks 2 --check                                     ResNet, DDP; and compare with one process
//   train_vision --ranks 2 --model vit --parallel pipeline --check
//   train_vision --ranks 3 --data /data/cifar-10-batches-bin --end uneven --csv steps.csv --plot loss.png
//   mpirun -n 2 train_vision                                           ranks from any launcher that the library knows
//
// Without --data the images are synthetic. Exit status: 0 good, 1 an error or a failed check.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/option_checks.h"
#include "training/abort.h"
#include "training/trainers/device.h"
#include "training/trainers/precision.h"
#include "training/trainers/program.h"
#include "training/trainers/progress.h"
#include "training/trainers/vision/run.h"

namespace tutti::training {
namespace {

struct Arguments : TrainerOptions {
  VisionRunOptions run;
  std::string parallel = "ddp";
  std::string end;
  std::string data, synthetic = "shapes";
  int images = 4000, test_images = 1000;
};

void add_options(CLI::App& app, Arguments& arguments) {
  VisionRunOptions& run = arguments.run;
  const auto positive = whole_number(1);
  const auto none_or_more = whole_number(0);
  const auto add = [&](const char* name, auto& value, const char* help) {
    return app.add_option(name, value, help)->capture_default_str();
  };
  add_trainer_options(app, arguments);
  add("--model", run.model.model, "What is trained")->check(CLI::IsMember({"resnet", "vit"}));
  add("--parallel", arguments.parallel, "How the ranks share the work; pipeline: --model vit only")
      ->check(CLI::IsMember({"ddp", "fsdp", "pipeline"}));
  add("--precision", arguments.precision,
      "bf16, fp16: autocast, with a scaled loss for fp16 (not of a pipeline); weights stay fp32")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  add("--data", arguments.data, "Folder with MNIST's or CIFAR-10's files, by their usual names");
  const CLI::IsMember kinds({"shapes", "digits"});
  add("--synthetic", arguments.synthetic, "Without --data: the kind of images")->check(kinds);
  app.add_option("--draw", arguments.synthetic)->check(kinds)->group("");  // the name until 0.2
  add("--images", arguments.images, "Synthetic images to train on")->check(positive);
  add("--test-images", arguments.test_images, "Synthetic images to test with")->check(positive);
  add("--epochs", run.epochs, "Times that every image is seen")->check(positive);
  add("--batch", run.batch, "Rows of each rank's micro-batch")->check(positive);
  add("--accumulate", run.accumulate, "Micro-batches per step of each rank; a pipeline has --micro-batches")
      ->check(positive);
  add("--end", arguments.end,
      "An epoch's last step: true numbers of rows, filled up, or left out (default: uneven with "
      "ddp, else drop)")
      ->check(CLI::IsMember({"uneven", "pad", "drop"}));
  add("--lr", run.learning_rate, "Learning rate at the beginning; it falls to nothing")
      ->check(finite_number(/*above=*/true));
  add("--seed", run.model.seed, "For parameters, order and synthetic images")->check(none_or_more);
  add("--width", run.model.width, "Of the model; 0: its own")->check(none_or_more);
  add("--depth", run.model.depth, "Blocks of a ViT, or of each of ResNet's three stages; 0: the model's own")
      ->check(none_or_more);
  add("--heads", run.model.heads, "Of a ViT's attention")->check(positive);
  add("--patch", run.model.patch, "Side of a ViT's patches; must divide the images' side")->check(positive);
  add("--schedule", run.schedule, "Of a pipeline")->check(CLI::IsMember({"gpipe", "1f1b", "interleaved", "zb-h1"}));
  add("--micro-batches", run.micro_batches, "Of a pipeline's step")->check(positive);
  add("--stages-per-rank", run.stages_per_rank, "Of a pipeline with --schedule interleaved")->check(positive);
  app.add_flag("--deterministic", run.ddp.deterministic, "Same bits whatever algorithm and placement");
  app.add_flag("--check", arguments.check,
               "Afterwards train in one process and compare every bit (takes as long again, times ranks; implies "
               "--deterministic)");
}

/// Validates, plots and compares on rank 0, after the training. Returns the exit status.
int look_back(const Arguments& arguments, const VisionData& data, const VisionResult& result, int ranks) {
  std::printf("%s\n", result.cost.c_str());
  std::printf("test accuracy %.1f %% of %lld images\n", 100 * test_accuracy(arguments.run, data, result.state),
              static_cast<long long>(data.test.count()));
  plot_if_asked(arguments);
  if (!arguments.check) return 0;
  std::printf("training again in one process, to compare ...\n");
  std::fflush(stdout);
  const VisionResult reference = arguments.parallel == "pipeline" ? pipeline_reference(arguments.run, data)
                                                                  : ddp_reference(arguments.run, data, ranks);
  const std::string difference = first_difference(result, reference);
  if (!difference.empty()) {
    std::printf("check: FAILED: %s\n", difference.c_str());
    return 1;
  }
  std::printf("check: %d rank%s and one process have the same losses (%zu), parameters and buffers, to the bit\n",
              ranks, ranks == 1 ? "" : "s", result.losses.size());
  return 0;
}

int run_rank(Arguments arguments) {
  check_device("train_vision", arguments.device, arguments.backend);
  const std::map<std::string, EpochEnd> ends = {
      {"uneven", EpochEnd::uneven}, {"pad", EpochEnd::pad}, {"drop", EpochEnd::drop}};
  if (arguments.end.empty()) arguments.end = arguments.parallel == "ddp" ? "uneven" : "drop";
  arguments.run.end = ends.at(arguments.end);
  arguments.run.ddp.deterministic |= arguments.check;
  const VisionData data = arguments.data.empty()
                              ? synthetic_vision_data(arguments.synthetic, arguments.images, arguments.test_images,
                                                      arguments.run.model.seed)
                              : read_vision_folder(arguments.data);
  Options options;
  options.backend = arguments.backend;
  options.deterministic = options.deterministic || arguments.run.ddp.deterministic;
  Communicator comm = Communicator::from_environment(options);
  const int rank = comm.rank(), ranks = comm.size();
  torch::set_num_threads(threads_of_each(arguments.threads, ranks));
  arguments.run.device = choose_device(arguments.device, comm, options.deterministic);
  arguments.run.precision = precision_of(arguments.precision);

  std::optional<Progress> progress;
  if (rank == 0) {
    const int shares = arguments.parallel == "pipeline" ? arguments.run.micro_batches : ranks;
    progress.emplace(ProgressOptions{.program = "train_vision",
                                     .steps = steps_of(arguments.run, data, shares),
                                     .unit = "images",
                                     .csv = arguments.csv_file(),
                                     .json_lines = arguments.json_lines});
    std::printf("train_vision: %s, %d rank%s on %s, %s over %s, %lld images (%s), %d x %d rows per step, %s\n",
                arguments.run.model.model.c_str(), ranks, ranks == 1 ? "" : "s", arguments.device.c_str(),
                arguments.parallel.c_str(), arguments.backend.c_str(), static_cast<long long>(data.train.count()),
                data.name.c_str(), shares, arguments.run.batch * arguments.run.accumulate, arguments.end.c_str());
    std::fflush(stdout);
  }
  const VisionResult result = or_abort(comm, "train_vision", [&] {
    const auto train = arguments.parallel == "pipeline" ? train_vision_pipeline
                       : arguments.parallel == "fsdp"   ? train_vision_fsdp
                                                        : train_vision_ddp;
    return train(arguments.run, data, comm, [&](const StepMetrics& step) { progress->show(step); });
  });
  if (rank != 0) return 0;
  std::printf("%s\n", progress->summary().c_str());
  const int status = look_back(arguments, data, result, ranks);
  return progress->all_written() ? status : 1;
}

}  // namespace
}  // namespace tutti::training

int main(int argc, char** argv) {
  using namespace tutti::training;
  Arguments arguments;
  CLI::App app("Trains an image classifier on several ranks.");
  add_options(app, arguments);
  const auto check = [&] {
    if (app.count("--draw") > 0) {
      std::fprintf(stderr, "train_vision: --draw is called --synthetic now; the next release does not know --draw\n");
    }
    check_device("train_vision", arguments.device, arguments.backend);
  };
  return run_trainer({"train_vision", arguments, check, [&] { return run_rank(arguments); }}, app, argc, argv);
}
