// Ranks hold stages of the model; stages may be tensor parallel, and a pipeline may have replicas (DDP).
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "training/checkpointing/checkpoint_blocks.h"
#include "training/ddp/ddp.h"
#include "training/mesh/gpt_tensor_stage.h"
#include "training/pipeline/gpt_stages.h"
#include "training/pipeline/partition.h"
#include "training/pipeline/pipeline.h"
#include "training/pipeline/timeline.h"
#include "training/trainers/gpt/rank_model.h"
#include "training/trainers/gpt/recipe.h"
#include "training/trainers/gpt/strategy.h"

namespace tutti::training {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class PipelineStrategy : public Strategy {
 public:
  PipelineStrategy(const GptRunOptions& options, const Mesh& mesh)
      : options_(options),
        mesh_(mesh),
        schedule_(make_schedule(options.schedule, mesh.shape().pp, options.micro_batches, options.stages_per_rank)),
        cuts_(balanced_partition(gpt_costs(options.model), schedule_.stages)) {
    std::vector<Stage> stages = make_stages();
    pipeline_.emplace(std::move(stages), mesh_.pp(), schedule_, loss());
    ends_ = mesh_.pp().split(token_.defined() ? 0 : -1, mesh_.pp().rank(), "embedding");
    if (token_.defined()) pipeline_->tie(token_, ends_);
    if (mesh_.data().size() > 1) {
      DdpOptions ddp;
      ddp.deterministic = options_.deterministic;
      ddp_.emplace(*part_, mesh_.data(), ddp);
    }
  }

  float backward(const std::function<Batch(int micro)>& rows, GradScaler& scaler) override {
    set_gradients_to_zero();
    scaler.scale(torch::zeros({}));  // the last stage's rank alone has a loss, which the pipeline divides itself
    const double scale = scaler.get_scale();
    // Each run divides by what the whole step has.
    PipelineRunOptions run;
    run.total_weight = static_cast<double>(options_.passes()) * options_.batch * options_.model.context / scale;
    double loss = 0;
    {
      std::optional<DistributedDataParallel::NoSync> guard;
      if (ddp_) guard.emplace(ddp_->no_sync());
      for (int first = 0; first < options_.passes(); first += options_.micro_batches) {
        std::vector<torch::Tensor> inputs, targets;
        for (int micro = first; micro < first + options_.micro_batches; ++micro) {
          const Batch batch = rows(micro);
          inputs.push_back(batch.input);
          targets.push_back(batch.target);
        }
        const double begin = seconds_now();
        run.step = runs_++;
        last_run_ = pipeline_->run(inputs, targets, run);
        wait_seconds_ += seconds_now() - begin;
        for (const TimedAction& action : last_run_.measured) wait_seconds_ -= action.end - action.start;
        loss += last_run_.loss / scale;
      }
    }
    if (ddp_) ddp_->average_gradients();
    return static_cast<float>(loss);
  }

  std::vector<torch::Tensor> trained() const override { return parameters_in(*part_); }

  ClippedParameters clipped() const override {
    ClippedParameters result = count_once(*part_, parameters_of(*part_), mesh_);
    if (mesh_.place().pp == 0) return result;  // the first stage counts the tied weights
    const auto tied = std::find_if(result.own.begin(), result.own.end(),
                                   [&](const torch::Tensor& own) { return own.is_same(token_); });
    if (tied != result.own.end()) {
      result.copies.push_back(*tied);
      result.own.erase(tied);
    }
    return result;
  }

  void store(Gpt whole) override {
    const torch::NoGradGuard no_grad;
    const auto copy = [](const torch::nn::Module& from, const torch::nn::Module& into) {
      const auto source = from.named_parameters(), target = into.named_parameters();
      for (const auto& item : source) target[item.key()].detach().copy_(item.value());
    };
    const int ranks = mesh_.pp().size();
    for (int s = 0; s < schedule_.stages; ++s) {
      GptStage into = gpt_stage(whole, cuts_, static_cast<std::size_t>(s));
      if (schedule_.rank_of(s) == mesh_.pp().rank()) {
        const auto own = static_cast<std::size_t>(s / ranks);
        if (mesh_.shape().tp > 1) {
          tensor_stages_[own]->store(whole);
        } else {
          copy(*stages_[own], *into);
        }
      }
      Communicator comm = mesh_.pp();
      for (const torch::Tensor& parameter : into->parameters()) {
        comm.broadcast(parameter.data_ptr(), parameter.data_ptr(), parameter.nbytes(), DataType::u8,
                       schedule_.rank_of(s));
      }
    }
  }
  void check_equal() override {
    if (ddp_) ddp_->check_equal();
  }

  double wait_seconds() const override { return wait_seconds_; }
  std::uint64_t bytes_sent() const override {
    return mesh_.traffic().bytes_put + (ends_ ? ends_.traffic().bytes_put : 0);
  }
  HeldBytes held() const override { return held_by(trained()); }

  ExpectedCost expected_cost() const override {
    const int ranks = mesh_.pp().size();
    const double activation = 4.0 * options_.batch * options_.model.context * options_.model.width /
                              (options_.sequence_parallel ? options_.mesh.tp : 1);
    double elements = 0, sent = 0;
    for (int s = mesh_.pp().rank(); s < schedule_.stages; s += ranks) {
      const int begin = static_cast<int>(cuts_[static_cast<std::size_t>(s)]);
      const int end = static_cast<int>(cuts_[static_cast<std::size_t>(s) + 1]);
      elements += gpt_stage_elements(options_.model, begin, end, options_.mesh.tp);
      sent += tensor_bytes_sent(options_, begin, end);
      const int neighbours = (s > 0 ? 1 : 0) + (s + 1 < schedule_.stages ? 1 : 0);  // a gradient back, an output on
      sent += options_.passes() * activation * neighbours;
    }
    // The loss, its weight and the step; a hash of the tied weights' form, and their gradient.
    sent += options_.accumulate * all_gather_bytes(3.0 * sizeof(double) * ranks, ranks);
    if (token_.defined()) {
      const double gradient = all_reduce_bytes(static_cast<double>(token_.nbytes()), 2);
      sent += options_.accumulate * (static_cast<double>(sizeof(std::uint64_t)) + gradient);
    }
    DataParallelStep step;
    step.elements = elements;
    step.ranks = options_.mesh.data_ranks();
    return {adam_state(ShardedState::none, elements, 1), sent + data_parallel_bytes(step) + step_check_bytes(step)};
  }

  std::vector<RepeatedCall> communication() const override { return {}; }

  PipelineMeasure pipeline() const override {
    PipelineMeasure measure;
    measure.schedule = schedule_;
    measure.measured = gather_timeline(last_run_.measured, mesh_.pp());
    Simulation simulation = simulate(schedule_, measured_costs(measure.measured));
    measure.simulated = std::move(simulation.timeline);
    measure.simulated_live = std::move(simulation.peak_live);
    measure.measured_live.resize(measure.simulated_live.size());
    const std::int32_t mine = last_run_.peak_live;
    Communicator comm = mesh_.pp();
    comm.all_gather(&mine, measure.measured_live.data(), 1, DataType::i32);
    return measure;
  }

 private:
  std::vector<Stage> make_stages() {
    Gpt whole = make_gpt(options_);
    whole->to(options_.device);
    part_ = std::make_shared<torch::nn::Module>("stages of a rank");
    std::vector<Stage> stages;
    const auto add = [&](auto stage) {
      checkpoint_blocks(stage, options_.checkpoint_every);
      if (stage->token_weight().defined()) token_ = stage->token_weight();
      part_->register_module("stage" + std::to_string(stages.size()), stage.ptr());
      stages.push_back({stage.ptr(), [stage, precision = options_.precision,
                                      device = options_.device](const torch::Tensor& x) mutable {
                          const PrecisionGuard guard(precision, device);
                          return stage->forward(x);
                        }});
    };
    for (int s = mesh_.pp().rank(); s < schedule_.stages; s += mesh_.pp().size()) {
      const auto at = static_cast<std::size_t>(s);
      if (mesh_.shape().tp > 1) {
        TensorParallelOptions tensor;
        tensor.sequence_parallel = options_.sequence_parallel;
        tensor.seed = options_.seed;
        tensor_stages_.push_back(TensorParallelGptStage(whole, mesh_.tp(), cuts_[at], cuts_[at + 1], tensor));
        add(tensor_stages_.back());
      } else {
        stages_.push_back(gpt_stage(whole, cuts_, at));
        add(stages_.back());
      }
    }
    return stages;
  }

  PipelineLoss loss() const {
    PipelineLoss loss = mesh_.shape().tp > 1 ? tensor_parallel_gpt_loss(options_.model, mesh_.tp()) : gpt_loss();
    loss.value = [value = loss.value, precision = options_.precision, device = options_.device](
                     const torch::Tensor& logits, const torch::Tensor& targets) {
      const PrecisionGuard guard(precision, device);
      return value(logits, targets);
    };
    return loss;
  }

  void set_gradients_to_zero() {
    if (ddp_) return ddp_->zero_grad();
    for (torch::Tensor& parameter : part_->parameters()) {
      torch::Tensor& gradient = parameter.mutable_grad();
      if (!parameter.requires_grad()) continue;
      if (gradient.defined()) {
        gradient.zero_();
      } else {
        gradient = torch::zeros_like(parameter);
      }
    }
  }

  GptRunOptions options_;
  Mesh mesh_;
  Schedule schedule_;
  std::vector<std::size_t> cuts_;
  std::vector<GptStage> stages_;                       // of this rank; these, or with tensor parallelism
  std::vector<TensorParallelGptStage> tensor_stages_;  // those
  std::shared_ptr<torch::nn::Module> part_;            // all of them
  torch::Tensor token_;                                // tied with another rank's; undefined on ranks in between
  Communicator ends_;
  std::optional<Pipeline> pipeline_;
  std::optional<DistributedDataParallel> ddp_;
  PipelineRun last_run_;
  std::int64_t runs_ = 0;
  double wait_seconds_ = 0;
};

}  // namespace

std::unique_ptr<Strategy> make_pipeline(const GptRunOptions& options, const Mesh& mesh) {
  return std::make_unique<PipelineStrategy>(options, mesh);
}

}  // namespace tutti::training
