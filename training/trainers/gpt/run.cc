#include "training/trainers/gpt/run.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <utility>

#include "training/abort.h"
#include "training/trainers/allocation_peak.h"
#include "training/trainers/gpt/recipe.h"
#include "training/trainers/gpt/report.h"
#include "training/trainers/gpt/strategy.h"
#include "training/trainers/progress.h"

namespace tutti::training {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kReportEvery = 10;  // steps between two exchanges of losses
constexpr int kValidationBatches = 16;
constexpr int kMemoryStep = 2;  // whose activations are measured: after the first ones, which make what stays

double optimizer_bytes(torch::optim::Optimizer& optimizer) {
  double bytes = 0;
  for (const auto& item : optimizer.state()) {
    const auto& state = static_cast<const torch::optim::AdamWParamState&>(*item.second);
    bytes += static_cast<double>(state.exp_avg().nbytes() + state.exp_avg_sq().nbytes());
  }
  return bytes;
}

/// The loop of one rank.
class Run {
 public:
  Run(const GptRunOptions& options, const ByteText& text, const Mesh& mesh,
      const std::function<void(const StepMetrics&)>& report)
      : options_(options),
        mesh_(mesh),
        report_(report),
        sampler_(text.train(), options.model.context, options.seed),
        strategy_(make_strategy(options, mesh)),
        optimizer_(make_optimizer(strategy_->trained())),
        scaler_(make_scaler(options.precision, {mesh.dp(), mesh.fsdp(), mesh.tp(), mesh.pp()})) {
    result_.data_ranks = options.mesh.data_ranks();
  }

  GptResult go() {
    for (int step = 0; step < options_.steps; ++step) {
      pending_.push_back(train(step));
      if ((step + 1) % kReportEvery == 0 || step + 1 == options_.steps) exchange_losses();
    }
    strategy_->check_equal();
    make_report();
    const Gpt whole = make_gpt(options_);
    strategy_->store(whole);
    for (const torch::Tensor& parameter : whole->parameters()) {
      result_.parameters.push_back(parameter.detach().clone());
    }
    Communicator world = mesh_.world();
    world.barrier();  // every rank stays until all have checked
    return std::move(result_);
  }

 private:
  StepMetrics train(int step) {
    const Clock::time_point begin = Clock::now();
    const double waited = strategy_->wait_seconds();
    const std::uint64_t sent = strategy_->bytes_sent();
    const auto rows = [&](int micro) { return rows_of(options_, sampler_, step, micro, mesh_.data_rank()); };
    if (step == std::min(kMemoryStep, options_.steps - 1)) {
      const AllocationPeak peak(options_.device.type());
      local_.push_back(strategy_->backward(rows, scaler_));
      cost_.activations = static_cast<double>(peak.bytes());
    } else {
      local_.push_back(strategy_->backward(rows, scaler_));
    }
    StepMetrics metrics;
    metrics.step = step;
    metrics.bytes_sent = strategy_->bytes_sent() - sent;
    scaler_.unscale_(optimizer_);
    if (options_.clip > 0) {
      metrics.gradient_norm =
          clip_grad_norm(strategy_->clipped(), {mesh_.fsdp(), mesh_.tp(), mesh_.pp()}, options_.clip);
    }
    metrics.learning_rate = learning_rate_at(options_, step);
    set_learning_rate(optimizer_, metrics.learning_rate);
    scaler_.step(optimizer_);
    scaler_.update();
    metrics.units =
        static_cast<double>(result_.data_ranks) * options_.passes() * options_.batch * options_.model.context;
    metrics.seconds = seconds_since(begin);
    metrics.wait_seconds = strategy_->wait_seconds() - waited;
    // The first step agrees on shapes and the like; the last one is as all the others.
    cost_.sent = static_cast<double>(metrics.bytes_sent);
    total_seconds_ += metrics.seconds;
    return metrics;
  }

  /// Losses, and waits: the rank that waits least in a step is the one that the others wait for, so what it waits is
  /// communication. Every rank of a tp group and of a pipeline has its data rank's loss; the first of them counts.
  void exchange_losses() {
    Communicator world = mesh_.world();
    std::vector<float> all(local_.size() * static_cast<std::size_t>(world.size()));
    world.all_gather(local_.data(), all.data(), local_.size(), DataType::f32);
    std::vector<float> waits, all_waits(all.size());
    for (const StepMetrics& metrics : pending_) waits.push_back(static_cast<float>(metrics.wait_seconds));
    world.all_gather(waits.data(), all_waits.data(), waits.size(), DataType::f32);
    for (std::size_t i = 0; i < local_.size(); ++i) {
      float least = waits[i];
      for (std::size_t at = i; at < all_waits.size(); at += local_.size()) least = std::min(least, all_waits[at]);
      least_wait_ += least;
      for (int d = 0; d < result_.data_ranks; ++d) {
        const int rank = rank_at(options_.mesh, {d / options_.mesh.fsdp, d % options_.mesh.fsdp, 0, 0});
        result_.losses.push_back(all[static_cast<std::size_t>(rank) * local_.size() + i]);
      }
      pending_[i].loss = result_.loss(pending_[i].step);
      if (world.rank() == 0) report_(pending_[i]);
    }
    local_.clear();
    pending_.clear();
  }

  void make_report() {
    const HeldBytes held = strategy_->held();
    const ExpectedCost expected = strategy_->expected_cost();
    cost_.parameters = static_cast<double>(held.parameters);
    cost_.gradients = static_cast<double>(held.gradients);
    cost_.gathered = static_cast<double>(held.gathered);
    cost_.padding = static_cast<double>(held.padding);
    cost_.optimizer = optimizer_bytes(optimizer_);
    cost_.expected_state = expected.state.total();
    cost_.expected_sent = expected.bytes_sent;
    CostReport report;
    report.ranks = gather_costs(cost_, mesh_.world());
    report.step_seconds = total_seconds_ / options_.steps;
    report.wait_seconds = least_wait_ / options_.steps;
    std::vector<RepeatedCall> calls;  // none on a device, where it is not the host that waits
    if (options_.device.is_cpu()) calls = strategy_->communication();
    if (!calls.empty()) report.alone_seconds = time_alone(calls, mesh_.world());
    for (const RepeatedCall& call : calls) {
      if (!call.overlapped) report.wait_seconds += time_alone({call}, mesh_.world());
    }
    report.pipeline = strategy_->pipeline();
    result_.report = to_text(report);
    result_.pipeline = std::move(report.pipeline);
  }

  GptRunOptions options_;
  const Mesh& mesh_;
  const std::function<void(const StepMetrics&)>& report_;
  BatchSampler sampler_;
  std::unique_ptr<Strategy> strategy_;
  torch::optim::AdamW optimizer_;
  GradScaler scaler_;
  GptResult result_;
  std::vector<float> local_;  // losses that were not exchanged yet, as are the next
  std::vector<StepMetrics> pending_;
  RankCost cost_;
  double total_seconds_ = 0, least_wait_ = 0;
};

}  // namespace

double GptResult::loss(int step) const {
  double sum = 0;
  for (int rank = 0; rank < data_ranks; ++rank) sum += losses[static_cast<std::size_t>(step * data_ranks + rank)];
  return sum / data_ranks;
}

GptResult train_gpt(const GptRunOptions& options, const ByteText& text, Communicator comm,
                    const std::function<void(const StepMetrics&)>& report) {
  check_options(options);
  const Mesh mesh(std::move(comm), options.mesh);
  return or_abort({mesh.world(), mesh.dp(), mesh.fsdp(), mesh.tp(), mesh.pp(), mesh.data()}, "train_gpt",
                  [&] { return Run(options, text, mesh, report).go(); });
}

double validation_loss(const GptRunOptions& options, const ByteText& text,
                       const std::vector<torch::Tensor>& parameters) {
  torch::NoGradGuard no_grad;
  Gpt model(options.model);
  std::vector<torch::Tensor> own = model->parameters();
  for (std::size_t i = 0; i < own.size(); ++i) own[i].copy_(parameters[i]);
  model->eval();
  const BatchSampler sampler(text.validation(), options.model.context, options.seed);
  double sum = 0;
  for (int i = 0; i < kValidationBatches; ++i) {
    const Batch batch = sampler.batch(static_cast<std::uint64_t>(i), 0, options.batch);
    sum += model->loss(batch.input, batch.target).item<double>();
  }
  return sum / kValidationBatches;
}

}  // namespace tutti::training
