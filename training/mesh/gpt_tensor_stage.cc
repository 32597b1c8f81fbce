#include "training/mesh/gpt_tensor_stage.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <unordered_set>

#include "training/abort.h"
#include "training/pipeline/gpt_stages.h"
#include "training/tensor/cross_entropy.h"
#include "training/tensor/gathered_linear.h"
#include "training/tensor/regions.h"
#include "training/tensors.h"

namespace tutti::training {
namespace {

namespace nn = torch::nn;

}  // namespace

TensorParallelGptStageImpl::TensorParallelGptStageImpl(Gpt whole, Communicator comm, std::size_t begin, std::size_t end,
                                                       const TensorParallelOptions& options)
    : config_(whole->config()),
      options_(options),
      comm_(std::move(comm)),
      random_(std::make_shared<RandomStates>(options.seed, comm_.rank())),
      first_block_(static_cast<int>(std::max<std::size_t>(begin, 1)) - 1),
      embeds_(begin == 0),
      heads_(end == static_cast<std::size_t>(config_.layers) + 2),
      steps_(comm_) {
  if (begin >= end || end > static_cast<std::size_t>(config_.layers) + 2) {
    fail_on_all(comm_,
                fmt::format("TensorParallelGptStage: layers {} to {} cannot be a stage; expected a part of 0 to {}",
                            begin, end, config_.layers + 2));
  }
  GptParts parts = whole->parts();
  if (embeds_ || heads_) {
    token_ = register_module(
        "token", VocabularyParallelEmbedding(parts.token, comm_, ParallelOptions{"token", options_.sequence_parallel}));
  }
  const auto shared = [&](const std::string& name, const torch::Tensor& tensor) {
    return register_parameter(name, take_copy(tensor, comm_, name), tensor.requires_grad());
  };
  if (embeds_) position_ = shared("position", parts.position->weight);
  for (int i = first_block_; i < std::min(static_cast<int>(end) - 1, config_.layers); ++i) {
    const std::string name = fmt::format("block{}", i);
    blocks_.push_back(register_module(name, TensorParallelGptBlock(*whole, name, config_, comm_, options_, random_)));
  }
  if (heads_) {
    norm_ = {shared("norm_weight", parts.norm->weight), shared("norm_bias", parts.norm->bias),
             parts.norm->options.eps()};
  }
  train(whole->is_training());
}

torch::Tensor TensorParallelGptStageImpl::embed(const torch::Tensor& tokens) {
  const bool sequence = options_.sequence_parallel;
  const std::int64_t time = tokens.dim() == 2 ? tokens.size(1) : 0;
  if (tokens.dim() != 2 || time > config_.context || (sequence && time % comm_.size() != 0)) {
    fail_on_all(comm_,
                fmt::format("TensorParallelGptStage: tokens of {} dimensions and {} steps of time cannot be used; "
                            "expected [rows, time] with at most {} steps{}",
                            tokens.dim(), time, config_.context,
                            sequence ? fmt::format(", divisible by {} ranks", comm_.size()) : ""));
  }
  std::vector<torch::Tensor> own{position_};
  if (sequence) own = sum_gradients(own, comm_, "TensorParallelGptStage");
  const std::int64_t part = sequence ? time / comm_.size() : time;
  const torch::Tensor x =
      token_->forward(tokens.t()) + own[0].narrow(0, sequence ? comm_.rank() * part : 0, part).unsqueeze(1);
  if (!is_training() || config_.dropout == 0) return x;
  const auto guard = random_->use(sequence ? RandomRegion::inside : RandomRegion::outside);
  return torch::dropout(x, config_.dropout, /*train=*/true);
}

torch::Tensor TensorParallelGptStageImpl::head(const torch::Tensor& x) {
  const bool sequence = options_.sequence_parallel;
  std::vector<torch::Tensor> own{norm_.weight, norm_.bias};
  if (sequence) own = sum_gradients(own, comm_, "TensorParallelGptStage");
  const torch::Tensor y = norm_(x, own[0], own[1]);
  if (sequence && !options_.keep_gathered) return gathered_linear(y, token_->weight, {}, comm_, "head");
  return torch::linear(sequence ? gather_sequence(y, comm_, "head") : copy_to_region(y, comm_, "head"), token_->weight);
}

torch::Tensor TensorParallelGptStageImpl::forward(const torch::Tensor& x) {
  return or_abort(comm_, "TensorParallelGptStage::forward", [&] {
    steps_.begin(*this);
    torch::Tensor y = embeds_ ? embed(x) : x;
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      const int index = first_block_ + static_cast<int>(i);
      y = run_block_ ? run_block_(blocks_[i], index, y) : blocks_[i]->forward(y);
    }
    return heads_ ? head(y) : y;
  });
}

torch::Tensor TensorParallelGptStageImpl::token_weight() const {
  return token_.is_empty() ? torch::Tensor() : token_->weight;
}

void TensorParallelGptStageImpl::store(Gpt whole) const {
  const torch::NoGradGuard no_grad;
  GptParts parts = whole->parts();
  if (embeds_ || heads_) parts.token->weight.copy_(token_->whole().weight);
  if (embeds_) parts.position->weight.copy_(position_);
  for (const TensorParallelGptBlock& block : blocks_) block->store(*whole);
  if (heads_) {
    parts.norm->weight.copy_(norm_.weight);
    parts.norm->bias.copy_(norm_.bias);
  }
}

PipelineLoss tensor_parallel_gpt_loss(const GptConfig& config, Communicator comm) {
  PipelineLoss loss;
  loss.weight = gpt_loss().weight;
  loss.value = [vocabulary = config.vocabulary, comm = std::move(comm)](const torch::Tensor& logits,
                                                                        const torch::Tensor& targets) {
    CrossEntropyOptions options;
    options.ignore_index = kIgnored;
    options.divisor = 1;  // the sum
    options.vocabulary = vocabulary;
    return vocabulary_parallel_cross_entropy(logits, targets.t(), comm, options);
  };
  return loss;
}

std::vector<std::string> replicated_parameters(const torch::nn::Module& module) {
  std::unordered_set<const void*> cut;
  const auto note = [&](const nn::Module& layer) {
    if (const auto* column = layer.as<ColumnParallelLinearImpl>()) {
      cut.insert(column->weight.unsafeGetTensorImpl());
      if (column->bias.defined()) cut.insert(column->bias.unsafeGetTensorImpl());
    } else if (const auto* row = layer.as<RowParallelLinearImpl>()) {
      cut.insert(row->weight.unsafeGetTensorImpl());
    } else if (const auto* embedding = layer.as<VocabularyParallelEmbeddingImpl>()) {
      cut.insert(embedding->weight.unsafeGetTensorImpl());
    }
  };
  note(module);
  for (const auto& item : module.named_modules("", /*include_self=*/false)) note(*item.value());
  std::vector<std::string> names;
  for (const NamedTensor& parameter : parameters_of(module)) {
    if (!cut.contains(parameter.tensor.unsafeGetTensorImpl())) names.push_back(parameter.name);
  }
  return names;
}

}  // namespace tutti::training
