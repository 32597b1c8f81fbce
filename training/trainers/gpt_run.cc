#include "training/trainers/gpt_run.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <utility>

namespace tutti::training {
namespace {

using Clock = std::chrono::steady_clock;
using Tensors = std::vector<torch::Tensor>;

constexpr double kFinalShare = 0.1;   // of the learning rate, where the cosine ends
constexpr double kWeightDecay = 0.1;  // of matrices; biases and norms have none
constexpr int kReportEvery = 10;      // steps between two exchanges of losses
constexpr int kValidationBatches = 16;

/// Rises over the first tenth (100 steps at most), then falls along a cosine.
double learning_rate_at(const GptRunOptions& options, int step) {
  const int warm_up = std::min(100, options.steps / 10);
  if (step < warm_up) return options.learning_rate * (step + 1) / (warm_up + 1);
  const double done = static_cast<double>(step - warm_up) / std::max(1, options.steps - warm_up);
  return options.learning_rate * (kFinalShare + (1 - kFinalShare) * 0.5 * (1 + std::cos(M_PI * done)));
}

torch::optim::AdamW make_optimizer(const Gpt& model) {
  Tensors matrices, others;
  for (const torch::Tensor& parameter : model->parameters()) {
    if (parameter.requires_grad()) (parameter.dim() >= 2 ? matrices : others).push_back(parameter);
  }
  const auto with_decay = [](double decay) {
    return std::make_unique<torch::optim::AdamWOptions>(
        torch::optim::AdamWOptions().betas({0.9, 0.99}).weight_decay(decay));
  };
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(matrices, with_decay(kWeightDecay));
  groups.emplace_back(others, with_decay(0));
  return torch::optim::AdamW(std::move(groups), torch::optim::AdamWOptions());
}

/// One model with its optimiser and its rows; the same object on a rank and in the twin.
class Training {
 public:
  Training(const GptRunOptions& options, const ByteText& text)
      : options_(options),
        model_((torch::manual_seed(options.seed), Gpt(options.model))),
        optimizer_(make_optimizer(model_)),
        sampler_(text.train(), options.model.context, options.seed) {}

  Gpt& model() { return model_; }

  /// Adds the gradients of `rows` rows from `first_row` of the step. Returns their loss.
  float backward(int step, int first_row, int rows, bool reversed = false) {
    Batch batch = sampler_.batch(static_cast<std::uint64_t>(step), static_cast<std::uint64_t>(first_row), rows);
    if (reversed) batch = {batch.input.flip(0), batch.target.flip(0)};
    const torch::Tensor loss = model_->loss(batch.input, batch.target);
    (loss / options_.accumulate).backward();
    return loss.item<float>();
  }

  /// Clips and takes the step. Returns the norm before clipping.
  double update(int step) {
    const double norm =
        options_.clip > 0 ? torch::nn::utils::clip_grad_norm_(model_->parameters(), options_.clip) : 0.0;
    for (torch::optim::OptimizerParamGroup& group : optimizer_.param_groups()) {
      group.options().set_lr(learning_rate_at(options_, step));
    }
    optimizer_.step();
    return norm;
  }

  Tensors parameters() const {
    Tensors copies;
    for (const torch::Tensor& parameter : model_->parameters()) copies.push_back(parameter.detach().clone());
    return copies;
  }

 private:
  GptRunOptions options_;
  Gpt model_;
  torch::optim::AdamW optimizer_;
  BatchSampler sampler_;
};

void set_gradients_to_zero(const Gpt& model) {
  for (torch::Tensor& parameter : model->parameters()) {
    if (parameter.requires_grad()) parameter.mutable_grad() = torch::zeros_like(parameter);
  }
}

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

}  // namespace

double GptResult::loss(int step) const {
  double sum = 0;
  for (int rank = 0; rank < ranks; ++rank) sum += losses[static_cast<std::size_t>(step * ranks + rank)];
  return sum / ranks;
}

GptResult train_with_ddp(const GptRunOptions& options, const ByteText& text, Communicator comm,
                         const std::function<void(const GptStep&)>& report) {
  const int rank = comm.rank(), ranks = comm.size();
  Training training(options, text);
  DistributedDataParallel ddp(*training.model(), comm, options.ddp);

  GptResult result{ranks, {}, {}};
  std::vector<float> local, gathered;
  std::vector<GptStep> pending;
  for (int step = 0; step < options.steps; ++step) {
    const Clock::time_point begin = Clock::now();
    const double waited = ddp.stats().wait_seconds;
    ddp.zero_grad();
    double loss = 0;
    for (int micro = 0; micro < options.accumulate; ++micro) {
      std::optional<DistributedDataParallel::NoSync> guard;
      if (micro + 1 < options.accumulate) guard.emplace(ddp.no_sync());
      loss += training.backward(step, (micro * ranks + rank) * options.batch, options.batch);
    }
    const double norm = training.update(step);
    local.push_back(static_cast<float>(loss / options.accumulate));
    pending.push_back(
        {step, 0, learning_rate_at(options, step), norm, seconds_since(begin), ddp.stats().wait_seconds - waited});

    if ((step + 1) % kReportEvery != 0 && step + 1 != options.steps) continue;
    gathered.resize(local.size() * static_cast<std::size_t>(ranks));
    comm.all_gather(local.data(), gathered.data(), local.size(), DataType::f32);
    for (std::size_t i = 0; i < local.size(); ++i) {
      for (std::size_t r = 0; r < static_cast<std::size_t>(ranks); ++r) {
        result.losses.push_back(gathered[r * local.size() + i]);
      }
      pending[i].loss = result.loss(pending[i].step);
      if (rank == 0) report(pending[i]);
    }
    local.clear();
    pending.clear();
  }
  ddp.check_equal();
  comm.barrier();  // nobody leaves while another still checks
  result.parameters = training.parameters();
  return result;
}

GptResult train_twin(const GptRunOptions& options, const ByteText& text, int ranks, Twin twin) {
  const bool one_batch = twin == Twin::batch || twin == Twin::batch_reversed;
  const bool reversed = twin == Twin::shards_reversed || twin == Twin::batch_reversed;
  Training training(options, text);
  GptResult result{ranks, {}, {}};
  for (int step = 0; step < options.steps; ++step) {
    std::vector<float> losses(static_cast<std::size_t>(ranks));
    if (one_batch) {
      set_gradients_to_zero(training.model());
      double loss = 0;
      for (int micro = 0; micro < options.accumulate; ++micro) {
        const int rows = ranks * options.batch;
        loss += training.backward(step, micro * rows, rows, reversed);
      }
      std::fill(losses.begin(), losses.end(), static_cast<float>(loss / options.accumulate));
    } else {
      Tensors sum;
      for (int turn = 0; turn < ranks; ++turn) {
        const int rank = reversed ? ranks - 1 - turn : turn;
        set_gradients_to_zero(training.model());
        double loss = 0;
        for (int micro = 0; micro < options.accumulate; ++micro) {
          loss += training.backward(step, (micro * ranks + rank) * options.batch, options.batch);
        }
        losses[static_cast<std::size_t>(rank)] = static_cast<float>(loss / options.accumulate);
        std::size_t i = 0;
        for (const torch::Tensor& parameter : training.model()->parameters()) {
          if (!parameter.requires_grad()) continue;
          if (turn == 0)
            sum.push_back(parameter.grad());
          else
            sum[i].add_(parameter.grad());
          ++i;
        }
      }
      std::size_t i = 0;
      for (torch::Tensor& parameter : training.model()->parameters()) {
        if (parameter.requires_grad()) parameter.mutable_grad() = sum[i++].div_(static_cast<double>(ranks));
      }
    }
    training.update(step);
    result.losses.insert(result.losses.end(), losses.begin(), losses.end());
  }
  result.parameters = training.parameters();
  return result;
}

double validation_loss(const GptRunOptions& options, const ByteText& text, const Tensors& parameters) {
  torch::NoGradGuard no_grad;
  Gpt model(options.model);
  Tensors own = model->parameters();
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
