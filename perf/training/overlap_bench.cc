// How much communication hides behind backward: a GPT trained over a link that is slowed down so that communication
// takes about as long as backward (throttled_communicator.h), by bucket or unit size, with overlap and without.
//
//   overlap_bench [--ranks 2] [--sizes 0.1 0.5 2 5 25] [--relative 1] [--strategies ddp fsdp] [-J FILE]
//
// Computation alone (forward and backward, no hooks), communication alone (the same calls, no computation), the two
// with overlap and without take turns, several rounds; each step begins with a barrier and lasts as long as its slowest
// rank's; the median counts. A step here is zero_grad, forward and backward: the optimiser hides nothing.
// Sizes are MiB: of DDP's buckets (all of them, the first too), or of FSDP's units (by_size).
//
// Exit status: 0 good, 1 an error, 6 wrong usage.
#include <fmt/format.h>
#include <malloc.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/option_checks.h"
#include "base/standard_streams.h"
#include "launch/launch_local.h"
#include "launch/launcher.h"
#include "perf/training/overlap_strategies.h"
#include "perf/training/throttled_communicator.h"
#include "training/models/gpt.h"
#include "tutti/tutti.hpp"

namespace tutti::perf {
namespace {

using Clock = std::chrono::steady_clock;

struct Arguments {
  int ranks = 2;
  int steps = 5;
  int rounds = 3;
  int batch = 8;
  double relative = 1;  // communication over backward
  training::GptConfig model{.layers = 8, .heads = 4, .width = 256};
  std::vector<double> sizes{0.1, 0.5, 2, 5, 25};  // MiB
  std::vector<std::string> strategies{"ddp", "fsdp"};
  std::string json_file;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void append(std::vector<double>& to, const std::vector<double>& from) { to.insert(to.end(), from.begin(), from.end()); }

/// Milliseconds, of the slowest rank.
struct Times {
  std::vector<double> forward, backward, step;
  void append(const Times& other) {
    perf::append(forward, other.forward);
    perf::append(backward, other.backward);
    perf::append(step, other.step);
  }
};

/// A model and rows that never change: only time counts.
class Workload {
 public:
  explicit Workload(const Arguments& arguments) : model_((torch::manual_seed(1), arguments.model)) {
    const auto options = torch::TensorOptions(torch::kInt64);
    tokens_ = torch::randint(arguments.model.vocabulary, {arguments.batch, arguments.model.context}, options);
    targets_ = torch::randint(arguments.model.vocabulary, {arguments.batch, arguments.model.context}, options);
  }
  torch::Tensor forward() { return model_->loss(tokens_, targets_); }
  training::Gpt& model() { return model_; }

 private:
  training::Gpt model_;
  torch::Tensor tokens_, targets_;
};

class Bench {
 public:
  Bench(Arguments arguments, Communicator comm)
      : arguments_(std::move(arguments)), comm_(std::move(comm)), bytes_(parameter_bytes()) {}

  nlohmann::ordered_json run();

 private:
  struct Cell {
    std::string strategy;
    double mib = 0;
    std::size_t pieces = 0;
    std::vector<PlannedCall> calls;
    double bytes_per_step = 0;  // on the link, per rank
    double speed = 0;
    Times alone;  // computation
    std::vector<double> communication, overlapped, blocking;
    std::vector<double> ratios;  // one of each round: what it compares was measured within seconds
  };

  std::size_t parameter_bytes() {
    Workload workload(arguments_);
    return static_cast<std::size_t>(workload.model()->parameter_count()) * sizeof(float);
  }
  Communicator link(double speed, bool overlap) { return throttle(comm_.split(0, comm_.rank()), {speed, overlap}); }
  /// Each value becomes that of the slowest rank.
  void take_slowest(std::vector<double>& values) {
    comm_.all_reduce(values.data(), values.data(), values.size(), DataType::f64, ReduceOp::max);
  }
  Times train(Workload& workload, Strategy* strategy);
  std::unique_ptr<Strategy> make(const std::string& name, Workload& workload, Communicator comm, double mib);
  std::vector<double> measure_communication(const Cell& cell);
  std::vector<double> measure_steps(const Cell& cell, bool overlap);
  std::vector<Cell> plan(double backward_ms);
  void measure_round(Cell& cell);
  nlohmann::ordered_json report(const std::vector<Cell>& cells) const;

  Arguments arguments_;
  Communicator comm_;
  std::size_t bytes_;
};

Times Bench::train(Workload& workload, Strategy* strategy) {
  Times times;
  for (int step = -1; step < arguments_.steps; ++step) {  // the first warms up
    comm_.barrier();
    const Clock::time_point begin = Clock::now();
    if (strategy != nullptr) {
      strategy->zero_grad();
    } else {
      for (torch::Tensor& parameter : workload.model()->parameters()) {
        if (parameter.grad().defined()) parameter.mutable_grad().zero_();
      }
    }
    const torch::Tensor loss = workload.forward();
    const Clock::time_point middle = Clock::now();
    loss.backward();
    const Clock::time_point end = Clock::now();
    const auto ms = [](auto duration) { return std::chrono::duration<double, std::milli>(duration).count(); };
    std::vector<double> taken{ms(middle - begin), ms(end - middle), ms(end - begin)};
    take_slowest(taken);
    if (step < 0) continue;
    times.forward.push_back(taken[0]);
    times.backward.push_back(taken[1]);
    times.step.push_back(taken[2]);
  }
  return times;
}

std::unique_ptr<Strategy> Bench::make(const std::string& name, Workload& workload, Communicator comm, double mib) {
  const auto bytes = static_cast<std::size_t>(mib * (1 << 20));
  if (name == "ddp") return std::make_unique<Ddp>(workload.model(), std::move(comm), bytes);
  return std::make_unique<Fsdp>(workload.model(), std::move(comm), bytes);
}

/// One cell for each strategy and size; the link's speed is the strategy's: all of its bytes take `relative` times
/// backward.
std::vector<Bench::Cell> Bench::plan(double backward_ms) {
  std::vector<Cell> cells;
  for (const std::string& strategy : arguments_.strategies) {
    for (const double mib : arguments_.sizes) {
      Workload workload(arguments_);
      const auto made = make(strategy, workload, comm_.split(0, comm_.rank()), mib);
      for (int step = 0; step < 2; ++step) {  // in the first, FSDP does not know its order yet
        made->zero_grad();
        workload.forward().backward();
      }
      Cell cell{.strategy = strategy, .mib = mib, .pieces = made->pieces(), .calls = made->calls()};
      for (const PlannedCall& call : cell.calls) {
        cell.bytes_per_step +=
            link_bytes({.collective = call.collective, .count = call.count, .type = DataType::f32}, comm_.size());
      }
      const double seconds = arguments_.relative * backward_ms / 1e3;
      cell.speed = std::max(1.0, cell.bytes_per_step) / seconds;
      cells.push_back(std::move(cell));
    }
  }
  return cells;
}

std::vector<double> Bench::measure_communication(const Cell& cell) {
  Communicator slow = link(cell.speed, true);
  const auto ranks = static_cast<std::size_t>(comm_.size());
  std::size_t most = 0;
  for (const PlannedCall& call : cell.calls) most = std::max(most, call.count);
  Buffer<float> shard(most), whole(most * ranks);
  std::vector<double> times;
  for (int step = -1; step < arguments_.steps; ++step) {
    comm_.barrier();
    const Clock::time_point begin = Clock::now();
    Work last;
    for (const PlannedCall& call : cell.calls) {
      float* own = whole.data() + static_cast<std::size_t>(comm_.rank()) * call.count;
      if (call.collective == Collective::all_reduce) {
        last = slow.all_reduce_async(whole.data(), whole.data(), call.count, DataType::f32, ReduceOp::avg);
      } else if (call.collective == Collective::all_gather) {
        last = slow.all_gather_async(own, whole.data(), call.count, DataType::f32);
      } else {
        last = slow.reduce_scatter_async(whole.data(), shard.data(), call.count, DataType::f32, ReduceOp::avg);
      }
    }
    if (last) last.wait();
    std::vector<double> taken{std::chrono::duration<double, std::milli>(Clock::now() - begin).count()};
    take_slowest(taken);
    if (step >= 0) times.push_back(taken[0]);
  }
  return times;
}

std::vector<double> Bench::measure_steps(const Cell& cell, bool overlap) {
  Workload workload(arguments_);
  const auto strategy = make(cell.strategy, workload, link(cell.speed, overlap), cell.mib);
  return train(workload, strategy.get()).step;
}

nlohmann::ordered_json Bench::run() {
  const Times alone = [&] {
    Workload workload(arguments_);
    return train(workload, nullptr);
  }();
  std::vector<Cell> cells = plan(median(alone.backward));
  for (int round = 0; round < arguments_.rounds; ++round) {
    for (Cell& cell : cells) measure_round(cell);
  }
  return report(cells);
}

void Bench::measure_round(Cell& cell) {
  const Times alone = [&] {
    Workload workload(arguments_);
    return train(workload, nullptr);
  }();
  const std::vector<double> communication = measure_communication(cell);
  const std::vector<double> overlapped = measure_steps(cell, true), blocking = measure_steps(cell, false);
  cell.alone.append(alone);
  append(cell.communication, communication);
  append(cell.overlapped, overlapped);
  append(cell.blocking, blocking);
  cell.ratios.push_back(median(overlapped) / std::max(median(alone.step), median(communication)));
}

nlohmann::ordered_json Bench::report(const std::vector<Cell>& cells) const {
  Times alone;
  auto rows = nlohmann::ordered_json::array();
  for (const Cell& cell : cells) {
    alone.append(cell.alone);
    rows.push_back({{"strategy", cell.strategy},
                    {"mib", cell.mib},
                    {"pieces", cell.pieces},
                    {"link_bytes", cell.bytes_per_step},
                    {"bytes_per_second", cell.speed},
                    {"compute_ms", median(cell.alone.step)},
                    {"communication_ms", median(cell.communication)},
                    {"step_ms", median(cell.overlapped)},
                    {"blocking_ms", median(cell.blocking)},
                    {"ratio", median(cell.ratios)}});
  }
  return {{"ranks", comm_.size()},
          {"layers", arguments_.model.layers},
          {"width", arguments_.model.width},
          {"rows", arguments_.batch},
          {"context", arguments_.model.context},
          {"parameter_bytes", bytes_},
          {"relative", arguments_.relative},
          {"steps", arguments_.steps},
          {"rounds", arguments_.rounds},
          {"compute_ms", median(alone.step)},
          {"forward_ms", median(alone.forward)},
          {"backward_ms", median(alone.backward)},
          {"results", rows}};
}

void print(const nlohmann::ordered_json& report) {
  fmt::print("# {} ranks, {} layers of {}, {:.1f} MB of parameters, {} rounds of {} steps; milliseconds, medians\n",
             report["ranks"].get<int>(), report["layers"].get<int>(), report["width"].get<int>(),
             report["parameter_bytes"].get<double>() / 1e6, report["rounds"].get<int>(), report["steps"].get<int>());
  fmt::print("# computation alone {:.1f}: forward {:.1f}, backward {:.1f}\n", report["compute_ms"].get<double>(),
             report["forward_ms"].get<double>(), report["backward_ms"].get<double>());
  fmt::print("{:>8s} {:>7s} {:>6s} {:>9s} {:>11s} {:>13s} {:>8s} {:>8s}  {}\n", "strategy", "MiB", "pieces", "MB/s",
             "computation", "communication", "overlap", "without", "overlap / max(computation, communication)");
  for (const auto& row : report["results"]) {
    fmt::print("{:>8s} {:7.2f} {:6d} {:9.1f} {:11.1f} {:13.1f} {:8.1f} {:8.1f}  {:.2f}\n",
               row["strategy"].get<std::string>(), row["mib"].get<double>(), row["pieces"].get<int>(),
               row["bytes_per_second"].get<double>() / 1e6, row["compute_ms"].get<double>(),
               row["communication_ms"].get<double>(), row["step_ms"].get<double>(), row["blocking_ms"].get<double>(),
               row["ratio"].get<double>());
  }
}

int run_rank(const Arguments& arguments) {
  // As train_gpt: freed tensors stay in the process, so that no step pays for page faults.
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  mallopt(M_MMAP_THRESHOLD, std::numeric_limits<int>::max());
  torch::set_num_threads(1);
  const Communicator comm = Communicator::from_environment();
  const nlohmann::ordered_json report = Bench(arguments, comm).run();
  if (comm.rank() != 0) return 0;
  print(report);
  if (arguments.json_file.empty()) return 0;
  std::ofstream file(arguments.json_file);
  file << report.dump(2) << '\n';
  if (file.flush()) return 0;
  fmt::print(stderr, "overlap_bench: -J {}: could not be written\n", arguments.json_file);
  return 1;
}

}  // namespace
}  // namespace tutti::perf

int main(int argc, char** argv) try {
  tutti::perf::Arguments arguments;
  CLI::App app("How much communication hides behind backward, over a link slowed down.");
  const auto positive = tutti::whole_number(1);
  const auto above_nothing = tutti::finite_number(/*above=*/true);
  app.add_option("--ranks", arguments.ranks, "Local processes")
      ->check(tutti::whole_number(1, tutti::kMostLocalRanks))
      ->capture_default_str();
  app.add_option("--steps", arguments.steps, "In a round, after one to warm up")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--rounds", arguments.rounds, "Of all sizes and strategies")->check(positive)->capture_default_str();
  app.add_option("--batch", arguments.batch, "Rows per rank")->check(positive)->capture_default_str();
  app.add_option("--layers", arguments.model.layers, "Of the model")->check(positive)->capture_default_str();
  app.add_option("--width", arguments.model.width, "Of the model; a multiple of 4")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--context", arguments.model.context, "Tokens per row")->check(positive)->capture_default_str();
  app.add_option("--relative", arguments.relative, "Communication over backward")
      ->check(above_nothing)
      ->capture_default_str();
  app.add_option("--sizes", arguments.sizes, "MiB of buckets or units")->check(above_nothing)->capture_default_str();
  app.add_option("--strategies", arguments.strategies, "Of ddp and fsdp")
      ->check(CLI::IsMember({"ddp", "fsdp"}))
      ->capture_default_str();
  app.add_option("-J", arguments.json_file, "Write the figures to this file");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return tutti::end_of_output("overlap_bench", app.exit(error) == 0 ? 0 : 6);
  }
  const auto starts = app.count("--ranks") > 0 ? tutti::starts_ranks("--ranks", arguments.ranks)
                                               : tutti::Result<bool>(!tutti::is_launched());
  if (!starts.ok()) throw tutti::Error(starts.status().code(), starts.status().message());
  if (starts.value() && arguments.ranks > 1) {
    std::vector<std::string> command(argv, argv + argc);
    command[0] = std::filesystem::read_symlink("/proc/self/exe");
    return tutti::launch_local({arguments.ranks, "tutti", 1}, command);
  }
  return tutti::end_of_output("overlap_bench", tutti::perf::run_rank(arguments));
} catch (const std::exception& error) {
  fmt::print(stderr, "overlap_bench: {}\n", error.what());
  return 1;
}
