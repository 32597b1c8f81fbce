#include "training/trainers/gpt/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>

#include "training/pipeline/timeline.h"
#include "training/trainers/expected_cost.h"

namespace tutti::training {
namespace {

constexpr std::size_t kFields = sizeof(RankCost) / sizeof(double);
constexpr int kRepeats = 5;

std::string megabytes(double bytes) { return fmt::format("{:.3f}", bytes / 1e6); }

std::string percents(const std::vector<double>& shares) {
  std::vector<std::string> texts;
  for (const double share : shares) texts.push_back(fmt::format("{:.1f}", 100 * share));
  return fmt::format("{} %", fmt::join(texts, " "));
}

void run_once(const RepeatedCall& call, Buffer<float>& buffer) {
  Communicator comm = call.comm;
  const auto ranks = static_cast<std::size_t>(comm.size());
  const std::size_t part = std::max<std::size_t>(1, buffer.size() / ranks);
  float* const data = buffer.data();
  float* const own = data + static_cast<std::size_t>(comm.rank()) * part;
  switch (call.kind) {
    case RepeatedCall::Kind::all_reduce: return comm.all_reduce(data, data, buffer.size(), DataType::f32);
    case RepeatedCall::Kind::all_gather: return comm.all_gather(own, data, part, DataType::f32);
    case RepeatedCall::Kind::reduce_scatter: return comm.reduce_scatter(data, own, part, DataType::f32);
  }
}

std::string of_pipeline(const PipelineMeasure& pipeline) {
  const Schedule& schedule = pipeline.schedule;
  const double ideal =
      pipeline_bubble(schedule.name, schedule.ranks, schedule.micro_batches, schedule.stages / schedule.ranks);
  return fmt::format(
      "theory: pipeline {}, {} micro-batches: idle {:.1f} % of the time if all stages cost the same; with the measured "
      "costs of each rank {} simulated, {} measured; live micro-batches {} simulated, {} measured\n",
      schedule.name, schedule.micro_batches, 100 * ideal, percents(idle_of(pipeline.simulated)),
      percents(idle_of(pipeline.measured)), fmt::join(pipeline.simulated_live, " "),
      fmt::join(pipeline.measured_live, " "));
}

}  // namespace

std::vector<RankCost> gather_costs(const RankCost& mine, Communicator comm) {
  std::vector<RankCost> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(&mine, all.data(), kFields, DataType::f64);
  return all;
}

double time_alone(const std::vector<RepeatedCall>& calls, Communicator world) {
  std::vector<Buffer<float>> buffers;
  for (const RepeatedCall& call : calls) {
    const auto ranks = static_cast<std::size_t>(call.comm.size());
    const auto elements = static_cast<std::size_t>(call.bytes / sizeof(float));
    buffers.emplace_back(std::max<std::size_t>(1, (elements + ranks - 1) / ranks) * ranks);
  }
  std::vector<double> seconds;
  for (int repeat = 0; repeat <= kRepeats; ++repeat) {  // the first one connects and does not count
    world.barrier();
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < calls.size(); ++i) {
      for (int time = 0; time < static_cast<int>(std::lround(calls[i].times)); ++time) run_once(calls[i], buffers[i]);
    }
    const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (repeat > 0) seconds.push_back(took);
  }
  std::nth_element(seconds.begin(), seconds.begin() + kRepeats / 2, seconds.end());
  return seconds[kRepeats / 2];
}

std::string to_text(const CostReport& report) {
  std::string text =
      "memory per rank, MB: parameters, gradients, optimiser = state; by formula; gathered, activations\n";
  RankCost mean;
  for (std::size_t rank = 0; rank < report.ranks.size(); ++rank) {
    const RankCost& cost = report.ranks[rank];
    text += fmt::format("  rank {}: {} {} {} = {}; {}{}; {} {}\n", rank, megabytes(cost.parameters),
                        megabytes(cost.gradients), megabytes(cost.optimizer),
                        megabytes(cost.parameters + cost.gradients + cost.optimizer), megabytes(cost.expected_state),
                        cost.padding > 0 ? fmt::format(" and {} of padding", megabytes(cost.padding)) : "",
                        megabytes(cost.gathered), megabytes(cost.activations));
    mean.sent += cost.sent / static_cast<double>(report.ranks.size());
    mean.expected_sent += cost.expected_sent / static_cast<double>(report.ranks.size());
  }
  text += fmt::format("theory: bytes sent per step, mean over the ranks: {:.0f} by formula, {}\n", mean.expected_sent,
                      mean.sent > 0 || mean.expected_sent == 0 ? fmt::format("{:.0f} counted", mean.sent)
                                                               : "not counted by this backend");
  if (report.pipeline.exists()) text += of_pipeline(report.pipeline);
  if (report.alone_seconds > 0) {
    text += fmt::format(
        "communication: {:.3f} ms of a step alone, {:.3f} ms waited for by the rank that waited least: {:.0f} % "
        "hidden\n",
        1e3 * report.alone_seconds, 1e3 * report.wait_seconds,
        100 * std::max(0.0, 1 - report.wait_seconds / report.alone_seconds));
  }
  return text;
}

}  // namespace tutti::training
