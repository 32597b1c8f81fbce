#include "training/trainers/gpt/command.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include "base/option_checks.h"
#include "training/trainers/device.h"
#include "training/trainers/gpt/recipe.h"
#include "tutti/tutti.hpp"

namespace tutti::training {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw Error(Code::invalid_argument, "train_gpt: " + what); }

void add_parallelism(CLI::App& app, GptCommand& command) {
  GptRunOptions& run = command.run;
  const std::string group = "Parallelism";
  app.add_option(
         "--parallel", command.parallel,
         "How the ranks share the work; with --mesh, which of them shards (default: ddp, or what the mesh says)")
      ->check(CLI::IsMember({"ddp", "zero1", "zero2", "fsdp", "pipeline", "tensor"}))
      ->group(group);
  app.add_option("--mesh", command.mesh,
                 "Ranks along each dimension, such as fsdp=2,tp=2: of dp, fsdp, tp, pp; dp is what is left")
      ->group(group);
  app.add_option("--exchange", command.exchange,
                 "When --accumulate exchanges gradients: auto (every where they are sharded, else last), last, every")
      ->check(CLI::IsMember({"auto", "last", "every"}))
      ->capture_default_str()
      ->group(group);
  app.add_option("--schedule", run.schedule, "Of a pipeline")
      ->check(CLI::IsMember({"gpipe", "1f1b", "interleaved", "zb-h1"}))
      ->capture_default_str()
      ->group(group);
  app.add_option("--micro-batches", run.micro_batches, "Of a pipeline, per run; each of --batch rows")
      ->check(whole_number(1))
      ->capture_default_str()
      ->group(group);
  app.add_flag("--sequence-parallel", run.sequence_parallel,
               "Tensor parallelism cuts what lies between its regions, too")
      ->group(group);
  app.add_option("--checkpoint-activations", run.checkpoint_every,
                 "Compute every Nth block again in backward (1: all), in place of keeping its activations; 0: none")
      ->check(whole_number(0))
      ->capture_default_str()
      ->group(group);
  app.add_flag(
         "--offload", run.offload,
         "With fsdp: shards and the optimiser's state stay in host memory; on the CPU, where they are anyway, this "
         "only takes the way through host blocks")
      ->group(group);
  app.add_flag("--deterministic", run.deterministic, "Same bits whatever algorithm and placement")->group(group);
  app.add_option("--algorithm", command.algorithm,
                 "Force one where it can serve (docs/algorithms.md lists them); ring sends what the formulas say")
      ->group(group);
}

void add_model(CLI::App& app, GptCommand& command) {
  GptRunOptions& run = command.run;
  const auto positive = whole_number(1);
  app.add_option("--layers", run.model.layers, "Blocks")->check(positive)->capture_default_str()->group("Model");
  app.add_option("--heads", run.model.heads, "Of attention")->check(positive)->capture_default_str()->group("Model");
  app.add_option("--width", run.model.width, "Of the model; a multiple of --heads")
      ->check(positive)
      ->capture_default_str()
      ->group("Model");
  app.add_option("--context", run.model.context, "Bytes per row")
      ->check(positive)
      ->capture_default_str()
      ->group("Model");
}

}  // namespace

void add_options(CLI::App& app, GptCommand& command) {
  GptRunOptions& run = command.run;
  const auto positive = whole_number(1);
  app.add_option("--data", command.files, "Text files (default: /usr/share/common-licenses)");
  app.add_option("--steps", run.steps, "Optimiser steps")->check(positive)->capture_default_str();
  app.add_option("--batch", run.batch, "Rows per data rank and micro-batch")->check(positive)->capture_default_str();
  app.add_option("--accumulate", run.accumulate, "Micro-batches per step; with a pipeline, runs per step")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--lr", run.learning_rate, "Highest learning rate")
      ->check(finite_number(/*above=*/true))
      ->capture_default_str();
  app.add_option("--clip", run.clip, "Largest norm of the whole gradient; 0: any")
      ->check(finite_number(/*above=*/false))
      ->capture_default_str();
  app.add_option("--precision", command.precision,
                 "bf16, fp16: autocast, with a scaled loss for fp16; weights stay fp32")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}))
      ->capture_default_str();
  app.add_option("--seed", run.seed, "For parameters and rows")->check(whole_number(0))->capture_default_str();
  add_trainer_options(app, command);
  add_model(app, command);
  add_parallelism(app, command);
  const std::string group = "Output";
  app.add_flag("--check", command.check,
               "Afterwards train in one process and compare (takes as long again, times data ranks)")
      ->group(group);
  app.add_flag("--check-batch", command.check_batch, "As --check, with all rows in one large batch, within a tolerance")
      ->group(group);
  app.add_option(
         "--timeline", command.timeline,
         "Write the last run of a pipeline and its simulation to this JSON file (pipeline/timeline.py draws it)")
      ->group(group);
  app.callback([&] {
    for (const char* name : {"--schedule", "--micro-batches"}) {
      if (app.count(name) > 0) command.of_pipeline = name;
    }
  });
  app.footer(
      "At its end it prints memory per rank, bytes sent per step, the idle share of a pipeline and the share of\n"
      "communication that is hidden, beside what the formulas say.\n"
      "Activations: the most bytes that tensors made in one step's forward and backward took at once, temporaries\n"
      "included, counted at LibTorch's CPU allocator.\n"
      "Hidden: what a step's communication takes by itself, afterwards, less what the rank that waited least waited\n"
      "for it. Tensor parallel layers hide nothing, and the time that they wait is not in 'communication'. With "
      "--device\n"
      "cuda a device waits, not a rank, and what is hidden is not measured; activations are counted at its allocator.");
}

void interpret(GptCommand& command, int ranks) {
  GptRunOptions& run = command.run;
  check_device("train_gpt", command.device, command.backend);
  const std::string& way = command.parallel;
  if (command.mesh.empty()) {
    MeshShape& mesh = run.mesh;
    mesh = MeshShape{};
    (way == "pipeline"             ? mesh.pp
     : way == "tensor"             ? mesh.tp
     : way.empty() || way == "ddp" ? mesh.dp
                                   : mesh.fsdp) = ranks;
  } else {
    run.mesh = parse_mesh(command.mesh, ranks);
    const MeshShape& mesh = run.mesh;
    const bool shards = way == "zero1" || way == "zero2" || way == "fsdp";
    const bool fits = way.empty() || (way == "ddp" && mesh.fsdp == 1) || (shards && mesh.fsdp > 1) ||
                      (way == "pipeline" && mesh.pp > 1) || (way == "tensor" && mesh.tp > 1);
    if (!fits && ranks > 1) {
      refuse(fmt::format("--parallel {} and --mesh {} ({} ranks: {}) contradict each other; leave one of them out", way,
                         command.mesh, ranks, to_text(mesh)));
    }
  }
  if (!command.of_pipeline.empty() && !run.pipelined() && way != "pipeline") {
    refuse(fmt::format("{} is of a pipeline; expected --parallel pipeline, or a mesh with pp", command.of_pipeline));
  }
  run.sharding = way == "zero1" ? Sharding::zero1 : way == "zero2" ? Sharding::zero2 : Sharding::zero3;
  run.precision = precision_of(command.precision);
  run.exchange = command.exchange == "auto"   ? Exchange::automatic
                 : command.exchange == "last" ? Exchange::last
                                              : Exchange::every_pass;
  run.stages_per_rank = run.pipelined() && run.schedule == "interleaved" ? 2 : 1;
  if (!command.timeline.empty() && !run.pipelined()) {
    refuse(fmt::format("--timeline needs a pipeline; the mesh is {}", to_text(run.mesh)));
  }
  if (command.backend == "mpich" && run.mesh.fsdp > 1) {
    refuse(
        "--backend mpich: sharding uses two communicators at once, and MPICH over UCX stops a process that does; use "
        "openmpi, or --parallel ddp");
  }
  check_options(run);
}

}  // namespace tutti::training
