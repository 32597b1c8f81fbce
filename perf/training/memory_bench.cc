// Bytes of memory that a rank needs for a model and its Adam, by strategy and number of ranks, beside the formulas.
//
//   memory_bench [--ranks 1 2 4 8] [--layers 4] [--width 128] [-J FILE]
//
// Measured after a step, before gradients are given up: the memory in which the module's parameters and gradients lie,
// or, when they are sharded, what FsdpMemory counts; and what the optimiser keeps. Padding makes ranks differ: shown is
// the rank that needs the most, and the sum. Not in it: activations, what is gathered during a pass (shown beside), and
// the communicator's scratch, none of which these formulas are about.
// Formulas, f32, P parameters, n ranks: ddp 16 P; zero1 (8 + 8/n) P; zero2 (4 + 12/n) P; zero3 16/n P bytes
//   (Rajbhandari et al., "ZeRO", SC 2020, for f32).
// Ranks are threads of this process.
//
// Exit status: 0 good, 1 an error, 6 wrong usage.
#include <fmt/format.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/option_checks.h"
#include "base/standard_streams.h"
#include "training/ddp/ddp.h"
#include "training/fsdp/fsdp.h"
#include "training/models/gpt.h"
#include "tutti/tutti.hpp"

namespace tutti::perf {
namespace {

using training::FullyShardedDataParallel;
using Tensors = std::vector<torch::Tensor>;

struct Arguments {
  std::vector<int> ranks{1, 2, 4, 8};
  training::GptConfig model;
  std::string json_file;
};

/// Returns the bytes of the memory in which the tensors lie; each byte counts once.
std::size_t bytes_of(const Tensors& tensors) {
  std::vector<std::pair<std::uintptr_t, std::uintptr_t>> pieces;
  for (const torch::Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    const auto begin = reinterpret_cast<std::uintptr_t>(tensor.storage().data());
    pieces.emplace_back(begin, begin + tensor.storage().nbytes());
  }
  std::sort(pieces.begin(), pieces.end());
  std::size_t sum = 0;
  std::uintptr_t covered = 0;
  for (const auto& [begin, end] : pieces) {
    if (end > covered) sum += end - std::max(begin, covered);
    covered = std::max(covered, end);
  }
  return sum;
}

struct Measured {  // bytes
  std::size_t parameters = 0, gradients = 0, optimiser = 0, whole = 0;
  std::size_t padding = 0;        // of parameters, in shards
  std::size_t peak_gathered = 0;  // during a pass, beside the shards
};

Tensors gradients_of(const Tensors& parameters) {
  Tensors gradients;
  for (const torch::Tensor& parameter : parameters) gradients.push_back(parameter.grad());
  return gradients;
}

Tensors state_of(const torch::optim::AdamW& optimizer) {
  Tensors tensors;
  for (const auto& [parameter, state] : optimizer.state()) {
    const auto& adam = static_cast<const torch::optim::AdamWParamState&>(*state);
    tensors.insert(tensors.end(), {adam.exp_avg(), adam.exp_avg_sq(), adam.max_exp_avg_sq()});
  }
  return tensors;
}

Measured measure_tensors(const torch::nn::Module& model, const torch::optim::AdamW& optimizer,
                         const FullyShardedDataParallel* fsdp) {
  Measured measured;
  measured.optimiser = bytes_of(state_of(optimizer));
  if (fsdp == nullptr) {
    measured.parameters = bytes_of(model.parameters());
    measured.gradients = bytes_of(gradients_of(model.parameters()));
  } else {
    const training::FsdpMemory memory = fsdp->memory();
    measured.parameters = memory.shards + memory.gathered;
    measured.gradients = memory.gradients;
    measured.padding = memory.padding;
    measured.peak_gathered = memory.peak_gathered;
  }
  measured.whole = measured.parameters + measured.gradients + measured.optimiser;
  return measured;
}

Measured train_and_measure(const Arguments& arguments, const std::string& strategy, Communicator comm) {
  torch::set_num_threads(1);
  torch::manual_seed(1);
  training::Gpt model(arguments.model);
  std::unique_ptr<training::DistributedDataParallel> ddp;
  std::unique_ptr<FullyShardedDataParallel> fsdp;
  if (strategy == "ddp") {
    ddp = std::make_unique<training::DistributedDataParallel>(*model, comm);
  } else {
    training::FsdpOptions options;
    options.sharding = strategy == "zero1"   ? training::Sharding::zero1
                       : strategy == "zero2" ? training::Sharding::zero2
                                             : training::Sharding::zero3;
    fsdp = std::make_unique<FullyShardedDataParallel>(*model, comm, options);
  }
  const Tensors trained = fsdp ? fsdp->parameters() : model->parameters();
  torch::optim::AdamW optimizer(trained);
  const torch::Tensor tokens = torch::zeros({1, arguments.model.context}, torch::kInt64);
  for (int step = 0; step < 2; ++step) {
    fsdp ? fsdp->zero_grad() : ddp->zero_grad();
    model->loss(tokens, tokens).backward();
    optimizer.step();
  }

  const Measured measured = measure_tensors(*model, optimizer, fsdp.get());
  comm.barrier();  // no rank leaves while another still gathers
  return measured;
}

struct OfAllRanks {
  Measured most;  // the rank that needs the most
  std::size_t whole_sum = 0, padding_sum = 0;
};

OfAllRanks measure(const Arguments& arguments, const std::string& strategy, int ranks) {
  std::vector<Communicator> comms = Communicator::in_process(ranks);
  std::vector<Measured> measured(static_cast<std::size_t>(ranks));
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < measured.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        measured[rank] = train_and_measure(arguments, strategy, comms[rank]);
      } catch (const std::exception& error) {
        comms[rank].abort(error.what());
        errors[rank] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  OfAllRanks all{*std::max_element(measured.begin(), measured.end(),
                                   [](const Measured& a, const Measured& b) { return a.whole < b.whole; })};
  for (const Measured& one : measured) {
    all.whole_sum += one.whole;
    all.padding_sum += one.padding;
  }
  return all;
}

/// Bytes for each parameter.
double formula(const std::string& strategy, double ranks) {
  if (strategy == "zero1") return 8 + 8 / ranks;
  if (strategy == "zero2") return 4 + 12 / ranks;
  return strategy == "zero3" ? 16 / ranks : 16;
}

int run(const Arguments& arguments) {
  const std::int64_t count = training::Gpt(arguments.model)->parameter_count();
  auto rows = nlohmann::ordered_json::array();
  fmt::print("# {} parameters of f32, AdamW; bytes per rank after a step\n", count);
  fmt::print("{:>8s} {:>5s} {:>10s} {:>10s} {:>10s} {:>10s} {:>10s} {:>8s} {:>8s} {:>13s}\n", "strategy", "ranks",
             "parameters", "gradients", "optimiser", "measured", "formula", "measured", "padding", "peak gathered");
  for (const std::string strategy : {"ddp", "zero1", "zero2", "zero3"}) {
    for (const int ranks : arguments.ranks) {
      const OfAllRanks all = measure(arguments, strategy, ranks);
      const Measured& measured = all.most;
      const double predicted = formula(strategy, ranks) * static_cast<double>(count);
      const double ratio = static_cast<double>(measured.whole) / predicted;
      fmt::print("{:>8s} {:5d} {:10d} {:10d} {:10d} {:10d} {:10.0f} {:8.4f} {:8d} {:13d}\n", strategy, ranks,
                 measured.parameters, measured.gradients, measured.optimiser, measured.whole, predicted, ratio,
                 measured.padding, measured.peak_gathered);
      rows.push_back({{"strategy", strategy},
                      {"ranks", ranks},
                      {"parameters", measured.parameters},
                      {"gradients", measured.gradients},
                      {"optimiser", measured.optimiser},
                      {"measured", measured.whole},
                      {"formula", predicted},
                      {"measured_sum", all.whole_sum},
                      {"padding_sum", all.padding_sum},
                      {"peak_gathered", measured.peak_gathered}});
    }
  }
  if (arguments.json_file.empty()) return 0;
  std::ofstream file(arguments.json_file);
  file << nlohmann::ordered_json{{"parameters", count}, {"results", rows}}.dump(2) << '\n';
  if (file.flush()) return 0;
  fmt::print(stderr, "memory_bench: -J {}: could not be written\n", arguments.json_file);
  return 1;
}

}  // namespace
}  // namespace tutti::perf

int main(int argc, char** argv) try {
  tutti::perf::Arguments arguments;
  CLI::App app("Bytes per rank for a model and its Adam, by strategy and ranks, beside the formulas.");
  app.add_option("--ranks", arguments.ranks, "Numbers of ranks")->check(tutti::whole_number(1))->capture_default_str();
  app.add_option("--layers", arguments.model.layers, "Of the model")
      ->check(tutti::whole_number(1))
      ->capture_default_str();
  app.add_option("--width", arguments.model.width, "Of the model; a multiple of 4")
      ->check(tutti::whole_number(1))
      ->capture_default_str();
  app.add_option("-J", arguments.json_file, "Write the figures to this file");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return tutti::end_of_output("memory_bench", app.exit(error) == 0 ? 0 : 6);
  }
  return tutti::end_of_output("memory_bench", tutti::perf::run(arguments));
} catch (const std::exception& error) {
  fmt::print(stderr, "memory_bench: {}\n", error.what());
  return 1;
}
