// The cost of finding ranks whose steps or models differ: the checks of a step, measured alone, compared with a step
// of the small GPT (train_gpt's own) on two ranks.
//
//   step_checks_bench [--rounds 2000]
//
// DDP and FSDP look twice in a step at the form of the model (model_form.h), and compare 8 bytes once (DDP) or 16 bytes
// twice (FSDP); a tensor parallel model hashes that form and compares 8 bytes in each forward. The exchanges run here
// with nothing else going on; DDP's runs beside that of the gradients. Exit status: 0 good, 1 an error, 6 wrong usage.
#include <fmt/format.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include "base/option_checks.h"
#include "base/standard_streams.h"
#include "training/ddp/ddp.h"
#include "training/model_form.h"
#include "training/models/gpt.h"
#include "tutti/tutti.hpp"

namespace tutti::perf {
namespace {

constexpr int kRanks = 2;
constexpr int kRows = 12;
constexpr int kSteps = 40;

/// Microseconds of one call, the median.
double median_us(int times, const std::function<void()>& call) {
  std::vector<double> all;
  for (int i = 0; i < times; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    call();
    all.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
  }
  std::nth_element(all.begin(), all.begin() + times / 2, all.end());
  return all[static_cast<std::size_t>(times / 2)];
}

struct Costs {
  double step = 0, form = 0, hash = 0, exchange8 = 0, exchange16 = 0;
  std::size_t parameters = 0;
};

Costs measure(Communicator comm, int rounds) {
  torch::set_num_threads(1);
  const training::GptConfig config;
  training::Gpt model(config);
  training::DistributedDataParallel ddp(*model, comm);
  torch::optim::AdamW optimizer(model->parameters());
  const torch::Tensor rows = torch::randint(config.vocabulary, {kRows, config.context + 1}, torch::kInt64);
  const torch::Tensor input = rows.slice(1, 0, config.context).contiguous(), target = rows.slice(1, 1).contiguous();
  Costs costs;
  costs.parameters = model->parameters().size();
  costs.step = median_us(kSteps, [&] {
    ddp.zero_grad();
    model->loss(input, target).backward();
    optimizer.step();
  });
  training::ModelForm form(*model);
  costs.form = median_us(rounds, [&] { (void)form.change(); });
  costs.hash = median_us(rounds, [&] { (void)training::forms_of(*model); });
  std::vector<std::uint64_t> words(2 * kRanks);
  const auto exchange = [&](std::size_t count) {
    return median_us(rounds, [&] {
      comm.all_gather_async(words.data() + count * static_cast<std::size_t>(comm.rank()), words.data(), count,
                            DataType::u64)
          .wait();
    });
  };
  costs.exchange8 = exchange(1);
  costs.exchange16 = exchange(2);
  return costs;
}

void print(const Costs& costs) {
  fmt::print("the small GPT, {} parameters, {} ranks, {} rows: {:.0f} us a step\n\n", costs.parameters, kRanks, kRows,
             costs.step);
  fmt::print("| strategy | looks at the form, us | exchanges, us | of a step |\n|---|---|---|---:|\n");
  const auto row = [&](const char* name, const std::string& looks, const std::string& exchanges, double sum) {
    fmt::print("| {} | {} | {} | {:.2f} % |\n", name, looks, exchanges, 100 * sum / costs.step);
  };
  row("DDP", fmt::format("2 x {:.1f}", costs.form), fmt::format("{:.1f}", costs.exchange8),
      2 * costs.form + costs.exchange8);
  row("FSDP", fmt::format("2 x {:.1f}", costs.form), fmt::format("2 x {:.1f}", costs.exchange16),
      2 * costs.form + 2 * costs.exchange16);
  row("tensor parallel", fmt::format("{:.1f}", costs.hash), fmt::format("{:.1f}", costs.exchange8),
      costs.hash + costs.exchange8);
}

int run(int rounds) try {
  std::vector<Communicator> comms = Communicator::in_process(kRanks);
  std::future<Costs> other = std::async(std::launch::async, [&] { return measure(comms[1], rounds); });
  const Costs costs = measure(comms[0], rounds);
  (void)other.get();
  print(costs);
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "step_checks_bench: {}\n", error.what());
  return 1;
}

}  // namespace
}  // namespace tutti::perf

int main(int argc, char** argv) {
  int rounds = 2000;
  CLI::App app("What it costs to find ranks whose steps or models differ.");
  app.add_option("--rounds", rounds, "of each check")->check(tutti::whole_number(1, 1'000'000))->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return tutti::end_of_output("step_checks_bench", app.exit(error) == 0 ? 0 : 6);
  }
  return tutti::end_of_output("step_checks_bench", tutti::perf::run(rounds));
}
