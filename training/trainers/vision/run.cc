#include "training/trainers/vision/run.h"

#include <fmt/format.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <utility>

#include "training/fsdp/fsdp.h"
#include "training/pipeline/pipeline.h"
#include "training/pipeline/simulator.h"
#include "training/pipeline/timeline.h"
#include "training/trainers/expected_cost.h"
#include "training/trainers/progress.h"
#include "training/trainers/vision/parts.h"

namespace tutti::training {
namespace {

using Clock = std::chrono::steady_clock;
using Tensors = std::vector<torch::Tensor>;

std::size_t bytes_of(const Tensors& tensors) {
  std::size_t bytes = 0;
  for (const torch::Tensor& tensor : tensors) bytes += tensor.nbytes();
  return bytes;
}

/// Mean over the rows of all shares.
double loss_of(const VisionRows& rows, const double* of_shares) {
  double sum = 0;
  for (std::size_t i = 0; i < rows.counts.size(); ++i) sum += of_shares[i] * static_cast<double>(rows.counts[i]);
  return sum / static_cast<double>(rows.total);
}

/// Trains with one share for each rank. `parallel`: DDP or FSDP around the model. `join`: for ranks that run out of
/// rows; null when all have the same number. `bytes_sent`: by this rank, so far.
template <class Parallel>
VisionResult train_on_shares(const VisionRunOptions& options, const VisionData& data, Communicator comm,
                             const VisionReport& report, const Stage& model, Parallel& parallel, Tensors parameters,
                             Join* join, const std::function<std::uint64_t()>& bytes_sent) {
  const auto rank = static_cast<std::size_t>(comm.rank()), ranks = static_cast<std::size_t>(comm.size());
  VisionLoader loader(data, loader_options(options, comm.size(), comm.rank(), 1));
  VisionOptimizer optimizer(options, loader, std::move(parameters), {comm});
  VisionResult result{.losses_per_step = comm.size()};

  for (int epoch = 0; epoch < options.epochs; ++epoch) {
    std::vector<StepMetrics> steps;
    std::vector<VisionRows> rows_of_steps;
    std::vector<double> local;
    loader.begin(epoch);
    while (true) {
      const Clock::time_point begin = Clock::now();
      const double waited = parallel.stats().wait_seconds, learning_rate = optimizer.learning_rate();
      std::optional<VisionRows> rows = loader.next();
      if (!rows) break;
      local.push_back(0);
      std::uint64_t sent = 0;
      if (rows->counts[rank] > 0) {  // else this rank has run out: finish() below
        const double weight = join != nullptr ? join->weigh(static_cast<std::int64_t>(rows->counts[rank])) : 1;
        const std::uint64_t sent_before = bytes_sent();
        parallel.zero_grad();
        local.back() = pass_over(options, model, rows->batches[0], weight, [&](const torch::Tensor& part, bool last) {
          std::optional<typename Parallel::NoSync> guard;
          if (!last) guard.emplace(parallel.no_sync());
          optimizer.scale(part).backward();
        });
        sent = bytes_sent() - sent_before;
        optimizer.step();
      }
      steps.push_back({.step = epoch * loader.steps() + static_cast<int>(steps.size()),
                       .learning_rate = learning_rate,
                       .units = static_cast<double>(rows->total),
                       .seconds = seconds_since(begin),
                       .wait_seconds = parallel.stats().wait_seconds - waited,
                       .bytes_sent = sent});
      result.bytes_sent += static_cast<double>(sent) / (options.epochs * loader.steps());
      rows->batches.clear();
      rows_of_steps.push_back(std::move(*rows));
    }
    if (join != nullptr) join->finish([&] { optimizer.step(); });

    std::vector<double> gathered(local.size() * ranks);
    comm.all_gather(local.data(), gathered.data(), local.size(), DataType::f64);
    for (std::size_t i = 0; i < local.size(); ++i) {
      for (std::size_t other = 0; other < ranks; ++other) {
        result.losses.push_back(gathered[other * local.size() + i]);
      }
      steps[i].loss = loss_of(rows_of_steps[i], &result.losses[result.losses.size() - ranks]);
      if (rank == 0) report(steps[i]);
    }
  }
  return result;
}

/// The last step's idle share of each rank, beside the simulator's for the costs that were measured.
std::string bubble_sentence(const Schedule& schedule, const Timeline& measured) {
  const std::vector<double> idle = idle_of(measured);
  const std::vector<double> simulated = simulate(schedule, measured_costs(measured)).idle;
  std::string text = fmt::format("{} with {} micro-batches, idle share of each rank in the last step:", schedule.name,
                                 schedule.micro_batches);
  for (std::size_t rank = 0; rank < idle.size(); ++rank) {
    text += fmt::format(" {:.0f} % ({:.0f} %)", 100 * idle[rank], 100 * simulated[rank]);
  }
  return text + ", in brackets the simulator's for the times measured";
}

}  // namespace

VisionResult train_vision_ddp(const VisionRunOptions& options, const VisionData& data, Communicator comm,
                              const VisionReport& report) {
  const Stage model = make_trained_model(options, data);
  DistributedDataParallel ddp(*model.module, comm, options.ddp);
  Join join(ddp);
  VisionResult result =
      train_on_shares(options, data, comm, report, model, ddp, model.module->parameters(),
                      options.end == EpochEnd::uneven ? &join : nullptr, [&] { return comm.traffic().bytes_put; });
  ddp.check_equal();
  comm.barrier();  // every rank stays until all have checked
  result.state = state_of(*model.module);
  const std::size_t gradients = bytes_of(model.module->parameters());
  result.cost = fmt::format(
      "rank {} sent {:.0f} bytes in each backward; theory: 2(n-1)/n of the gradients' {} and 8(n-1): {:.0f}",
      comm.rank(), result.bytes_sent, gradients,
      all_reduce_bytes(static_cast<double>(gradients), comm.size()) + step_check_bytes({.ranks = comm.size()}));
  return result;
}

VisionResult train_vision_fsdp(const VisionRunOptions& options, const VisionData& data, Communicator comm,
                               const VisionReport& report) {
  if (options.end == EpochEnd::uneven) {
    throw Error(Code::invalid_argument,
                "train_vision: --end uneven: a sharded model cannot run without rows; expected drop or pad");
  }
  const Stage model = make_trained_model(options, data);
  const std::size_t bytes = bytes_of(model.module->parameters());
  FullyShardedDataParallel fsdp(*model.module, comm, {.deterministic = options.ddp.deterministic});
  VisionResult result = train_on_shares(options, data, comm, report, model, fsdp, fsdp.parameters(), /*join=*/nullptr,
                                        [&] { return fsdp.traffic().bytes_put; });
  const FsdpMemory memory = fsdp.memory();  // before all is whole
  {
    const auto whole = fsdp.summon_full_parameters();
    result.state = state_of(*model.module);
  }
  result.cost = fmt::format(
      "rank {} holds {} bytes of parameters; theory: 1/{} of all, {:.0f}, each parameter's part rounded up to whole "
      "rows; "
      "while units are whole {} more at most; {:.0f} bytes sent in each step",
      comm.rank(), memory.shards, comm.size(), static_cast<double>(bytes) / comm.size(), memory.peak_gathered,
      result.bytes_sent);
  comm.barrier();  // every rank stays until all have gathered
  return result;
}

VisionResult train_vision_pipeline(const VisionRunOptions& options, const VisionData& data, Communicator comm,
                                   const VisionReport& report) {
  check_pipeline(options);
  const Schedule schedule =
      make_schedule(options.schedule, comm.size(), options.micro_batches, options.stages_per_rank);
  VisionPipeline parts = cut_vit(options.model, data, schedule, options.batch, comm);
  parts.layers->to(options.device);
  for (Stage& stage : parts.stages) {
    stage.forward = [forward = stage.forward, &options](const torch::Tensor& x) {
      const PrecisionGuard guard(options.precision, options.device);
      return forward(x);
    };
  }
  Pipeline pipeline(parts.stages, comm, schedule, summed_loss());
  // Inputs are used on the first stage's rank and labels on the last one's.
  const bool reads = comm.rank() == 0 || comm.rank() == schedule.rank_of(schedule.stages - 1);
  VisionLoader loader(data, loader_options(options, options.micro_batches, 0, reads ? options.micro_batches : 0));
  VisionOptimizer optimizer(options, loader, parts.trained, {});
  VisionResult result;

  std::size_t shape_rows = 0;
  std::vector<TimedAction> last_step;
  for (int epoch = 0; epoch < options.epochs; ++epoch) {
    loader.begin(epoch);
    while (true) {
      const Clock::time_point begin = Clock::now();
      const std::optional<VisionRows> rows = loader.next();
      if (!rows) break;
      if (std::exchange(shape_rows, rows->counts[0]) != rows->counts[0]) pipeline.forget_shapes();
      Tensors inputs, labels;
      for (const ImageBatch& batch : rows->batches) {
        inputs.push_back(batch.input.to(options.device));
        labels.push_back(batch.target.to(options.device));
      }
      const double learning_rate = optimizer.learning_rate();
      optimizer.zero_grad();
      const std::uint64_t sent_before = comm.traffic().bytes_put;
      const Clock::time_point run_begin = Clock::now();
      PipelineRun run = pipeline.run(inputs, labels, {.step = static_cast<std::int64_t>(result.losses.size())});
      double wait_seconds = seconds_since(run_begin);
      for (const TimedAction& action : run.measured) wait_seconds -= action.end - action.start;
      optimizer.step();
      last_step = std::move(run.measured);
      result.losses.push_back(run.loss);
      if (comm.rank() != 0) continue;
      report({.step = static_cast<int>(result.losses.size()) - 1,
              .loss = run.loss,
              .learning_rate = learning_rate,
              .units = static_cast<double>(rows->total),
              .seconds = seconds_since(begin),
              .wait_seconds = wait_seconds,
              .bytes_sent = comm.traffic().bytes_put - sent_before});
    }
  }
  share_stages(parts, schedule, comm);
  result.state = state_of(*parts.layers);
  result.cost = bubble_sentence(schedule, gather_timeline(last_step, comm));
  return result;
}

}  // namespace tutti::training
