#include "training/trainers/gpt/reference.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "training/clip.h"
#include "training/pipeline/gpt_stages.h"
#include "training/trainers/gpt/recipe.h"

namespace tutti::training {
namespace {

using Tensors = std::vector<torch::Tensor>;

/// A whole model whose gradients are added as those of a rank.
class ReferenceModel {
 public:
  explicit ReferenceModel(const GptRunOptions& options) : options_(options), model_(make_gpt(options)) {
    model_->to(options.device);
    for (const torch::Tensor& parameter : model_->parameters()) {
      if (parameter.requires_grad()) trained_.push_back(parameter);
    }
  }

  Gpt& model() { return model_; }
  const Tensors& trained() const { return trained_; }

  /// Gradients of these rows, all passes of a step, from zero. Returns the mean loss.
  float backward(const std::function<Batch(int micro)>& rows, GradScaler& scaler) {
    for (torch::Tensor& parameter : trained_) parameter.mutable_grad() = torch::zeros_like(parameter);
    return options_.pipelined() ? pipelined(rows, scaler) : accumulated(rows, scaler);
  }

 private:
  float accumulated(const std::function<Batch(int micro)>& rows, GradScaler& scaler) {
    Tensors losses;
    for (int pass = 0; pass < options_.passes(); ++pass) {
      const Batch batch = rows(pass);
      torch::Tensor mean;
      {
        const PrecisionGuard guard(options_.precision, options_.device);
        mean = model_->loss(batch.input, batch.target);
      }
      (scaler.scale(mean) / options_.passes()).backward();
      losses.push_back(mean.detach());
    }
    return mean_of(losses);
  }

  float pipelined(const std::function<Batch(int micro)>& rows, GradScaler& scaler) {
    const double scale = scaler.get_scale();
    scaler.scale(torch::zeros({}));
    const double total = static_cast<double>(options_.passes()) * options_.batch * options_.model.context / scale;
    const PipelineLoss loss = gpt_loss();
    GptParts front = model_->parts(), back = front;
    back.token = torch::nn::Embedding(torch::nn::EmbeddingOptions(options_.model.vocabulary, options_.model.width));
    back.token->to(options_.device);
    torch::Tensor &embedding = front.token->weight, &output = back.token->weight;
    {
      const torch::NoGradGuard no_grad;
      output.copy_(embedding);
    }
    double sum = 0;
    for (int first = 0; first < options_.passes(); first += options_.micro_batches) {
      const torch::Tensor before = std::exchange(embedding.mutable_grad(), torch::zeros_like(embedding));
      output.mutable_grad() = torch::zeros_like(output);
      double of_run = 0;
      for (int micro = first; micro < first + options_.micro_batches; ++micro) {
        const Batch batch = rows(micro);
        torch::Tensor part;
        {
          const PrecisionGuard guard(options_.precision, options_.device);
          torch::Tensor x = front.embed(batch.input);
          for (GptBlock& block : front.blocks) x = block->forward(x);
          part = loss.value(back.head(x), batch.target).div(total);
        }
        part.backward();
        of_run += part.item<double>();
      }
      embedding.mutable_grad() = (embedding.grad() + output.grad()).add_(before);
      sum += of_run / scale;
    }
    return static_cast<float>(sum);
  }

  GptRunOptions options_;
  Gpt model_;
  Tensors trained_;
};

Batch reverse(const Batch& batch) { return {batch.input.flip(0), batch.target.flip(0)}; }

}  // namespace

GptResult train_reference(const GptRunOptions& given, const ByteText& text, const ReferenceOrder& order) {
  GptRunOptions options = given;
  const int ranks = options.mesh.data_ranks();
  if (order.one_batch) {
    if (options.pipelined()) throw Error(Code::invalid_argument, "train_reference: a pipeline has no large batch");
    options.mesh = MeshShape{};
    options.batch *= ranks;
  }
  ReferenceModel reference(options);
  torch::optim::AdamW optimizer = make_optimizer(reference.trained());
  GradScaler scaler = make_scaler(options.precision, {});
  const BatchSampler sampler(text.train(), options.model.context, options.seed);

  GptResult result;
  result.data_ranks = ranks;
  std::vector<int> turns(order.one_batch ? 1 : static_cast<std::size_t>(ranks));
  std::iota(turns.begin(), turns.end(), 0);
  if (order.ranks_reversed) std::reverse(turns.begin(), turns.end());
  for (int step = 0; step < options.steps; ++step) {
    std::vector<float> losses(static_cast<std::size_t>(ranks));
    Tensors sum;
    for (const int rank : turns) {
      const auto rows = [&](int micro) {
        const Batch batch = rows_of(options, sampler, step, micro, rank);
        return order.rows_reversed ? reverse(batch) : batch;
      };
      const float loss = reference.backward(rows, scaler);
      if (order.one_batch) {
        losses.assign(losses.size(), loss);
      } else {
        losses[static_cast<std::size_t>(rank)] = loss;
      }
      for (std::size_t i = 0; i < reference.trained().size(); ++i) {
        const torch::Tensor& gradient = reference.trained()[i].grad();
        if (rank == turns.front()) {
          sum.push_back(gradient);
        } else {
          sum[i].add_(gradient);
        }
      }
    }
    for (std::size_t i = 0; i < sum.size(); ++i) {
      torch::Tensor parameter = reference.trained()[i];
      parameter.mutable_grad() = turns.size() > 1 ? sum[i].div_(static_cast<double>(ranks)) : sum[i];
    }
    scaler.unscale_(optimizer);
    if (options.clip > 0) clip_grad_norm({reference.trained(), {}}, {}, options.clip);
    set_learning_rate(optimizer, learning_rate_at(options, step));
    scaler.step(optimizer);
    scaler.update();
    result.losses.insert(result.losses.end(), losses.begin(), losses.end());
  }
  reference.model()->to(torch::kCPU);
  for (const torch::Tensor& parameter : reference.model()->parameters()) {
    result.parameters.push_back(parameter.detach().clone());
  }
  return result;
}

}  // namespace tutti::training
