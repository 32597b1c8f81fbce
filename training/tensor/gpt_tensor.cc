#include "training/tensor/gpt_tensor.h"

#include <fmt/format.h>

#include <cstddef>
#include <utility>

#include "training/abort.h"
#include "training/tensor/cross_entropy.h"
#include "training/tensor/gathered_linear.h"
#include "training/tensor/regions.h"

namespace tutti::training {
namespace {

namespace nn = torch::nn;

/// A part of the whole model by its name there ("block0.mlp_in").
template <class Impl>
std::shared_ptr<Impl> find(nn::Module& whole, const std::string& name) {
  const auto modules = whole.named_modules(/*name_prefix=*/"", /*include_self=*/false);
  const auto* module = modules.find(name);
  auto found = module == nullptr ? nullptr : std::dynamic_pointer_cast<Impl>(*module);
  if (found == nullptr) {
    throw Error(Code::invalid_argument,
                fmt::format("TensorParallelGpt: the whole model has no '{}' of this type", name));
  }
  return found;
}

nn::Linear linear_in(nn::Module& whole, const std::string& name) {
  return nn::Linear(find<nn::LinearImpl>(whole, name));
}

torch::Tensor shared_parameter(nn::Module& owner, const std::string& name, const torch::Tensor& whole,
                               const Communicator& comm) {
  return owner.register_parameter(name, take_copy(whole, comm, name), whole.requires_grad());
}

SharedNorm shared_norm(nn::Module& owner, const std::string& name, const nn::LayerNormImpl& whole,
                       const Communicator& comm) {
  return {shared_parameter(owner, name + "_weight", whole.weight, comm),
          shared_parameter(owner, name + "_bias", whole.bias, comm), whole.options.eps()};
}

/// Parameter and gradient into a whole parameter.
void store_parameter(const torch::Tensor& from, torch::Tensor to) {
  const torch::NoGradGuard no_grad;
  to.copy_(from);
  if (from.grad().defined()) to.mutable_grad() = from.grad().clone();
}

void store_linear(const WholeParameters& from, const nn::Linear& to) {
  store_parameter(from.weight, to->weight);
  if (from.bias.defined()) store_parameter(from.bias, to->bias);
}

void store_norm(const SharedNorm& from, nn::LayerNormImpl& to) {
  store_parameter(from.weight, to.weight);
  store_parameter(from.bias, to.bias);
}

/// Dropout of what lies between the blocks.
torch::Tensor drop(const torch::Tensor& x, double dropout, bool training, bool sequence_parallel,
                   RandomStates& random) {
  if (!training || dropout == 0) return x;
  const auto guard = random.use(sequence_parallel ? RandomRegion::inside : RandomRegion::outside);
  return torch::dropout(x, dropout, /*train=*/true);
}

}  // namespace

torch::Tensor SharedNorm::operator()(const torch::Tensor& x, const torch::Tensor& own_weight,
                                     const torch::Tensor& own_bias) const {
  return torch::layer_norm(x, {own_weight.size(0)}, own_weight, own_bias, eps);
}

TensorParallelGptBlockImpl::TensorParallelGptBlockImpl(nn::Module& whole, const std::string& name,
                                                       const GptConfig& config, Communicator comm,
                                                       const TensorParallelOptions& wanted,
                                                       std::shared_ptr<RandomStates> random)
    : name_(name),
      dropout_(config.dropout),
      sequence_parallel_(wanted.sequence_parallel),
      comm_(std::move(comm)),
      random_(std::move(random)) {
  const auto options = [&](const char* part) {
    return ParallelOptions{name + "." + part, wanted.sequence_parallel, wanted.keep_gathered};
  };
  norm_attention_ =
      shared_norm(*this, "norm_attention", *find<nn::LayerNormImpl>(whole, name + ".norm_attention"), comm_);
  attention_ = register_module(
      "attention",
      ParallelAttention(linear_in(whole, name + ".query_key_value"), linear_in(whole, name + ".attention_out"),
                        config.heads, comm_, AttentionOptions{options("attention"), config.dropout, true}, random_));
  norm_mlp_ = shared_norm(*this, "norm_mlp", *find<nn::LayerNormImpl>(whole, name + ".norm_mlp"), comm_);
  mlp_ = register_module("mlp", ParallelMlp(linear_in(whole, name + ".mlp_in"), linear_in(whole, name + ".mlp_out"),
                                            comm_, options("mlp")));
}

torch::Tensor TensorParallelGptBlockImpl::forward(torch::Tensor x) {
  std::vector<torch::Tensor> own{norm_attention_.weight, norm_attention_.bias, attention_->out->bias,
                                 norm_mlp_.weight,       norm_mlp_.bias,       mlp_->out->bias};
  if (sequence_parallel_) own = sum_gradients(own, comm_, name_);
  const auto dropped = [&](const torch::Tensor& y) {
    return drop(y, dropout_, is_training(), sequence_parallel_, *random_);
  };
  x = x + dropped(attention_->forward(norm_attention_(x, own[0], own[1]), own[2]));
  return x + dropped(mlp_->forward(norm_mlp_(x, own[3], own[4]), own[5]));
}

void TensorParallelGptBlockImpl::store(nn::Module& whole) const {
  store_norm(norm_attention_, *find<nn::LayerNormImpl>(whole, name_ + ".norm_attention"));
  store_norm(norm_mlp_, *find<nn::LayerNormImpl>(whole, name_ + ".norm_mlp"));
  store_linear(attention_->query_key_value->whole(), linear_in(whole, name_ + ".query_key_value"));
  store_linear(attention_->out->whole(), linear_in(whole, name_ + ".attention_out"));
  store_linear(mlp_->in->whole(), linear_in(whole, name_ + ".mlp_in"));
  store_linear(mlp_->out->whole(), linear_in(whole, name_ + ".mlp_out"));
}

TensorParallelGptImpl::TensorParallelGptImpl(Gpt whole, Communicator comm, const TensorParallelOptions& options)
    : config_(whole->config()),
      options_(options),
      comm_(std::move(comm)),
      random_(std::make_shared<RandomStates>(options.seed, comm_.rank())),
      steps_(comm_) {
  token_ = register_module("token",
                           VocabularyParallelEmbedding(nn::Embedding(find<nn::EmbeddingImpl>(*whole, "token")), comm_,
                                                       ParallelOptions{"token", options_.sequence_parallel}));
  position_ = shared_parameter(*this, "position", find<nn::EmbeddingImpl>(*whole, "position")->weight, comm_);
  for (int i = 0; i < config_.layers; ++i) {
    const std::string name = fmt::format("block{}", i);
    blocks_.push_back(register_module(name, TensorParallelGptBlock(*whole, name, config_, comm_, options_, random_)));
  }
  norm_ = shared_norm(*this, "norm", *find<nn::LayerNormImpl>(*whole, "norm"), comm_);
  train(whole->is_training());
}

torch::Tensor TensorParallelGptImpl::logits(const torch::Tensor& tokens) {
  const bool sequence = options_.sequence_parallel;
  const std::int64_t time = tokens.dim() == 2 ? tokens.size(1) : 0;
  if (tokens.dim() != 2 || time > config_.context || (sequence && time % comm_.size() != 0)) {
    fail_on_all(comm_, fmt::format("TensorParallelGpt: tokens of {} dimensions and {} steps of time cannot be used; "
                                   "expected [rows, time] with at most {} steps{}",
                                   tokens.dim(), time, config_.context,
                                   sequence ? fmt::format(", divisible by {} ranks", comm_.size()) : ""));
  }
  steps_.begin(*this);
  std::vector<torch::Tensor> own{position_, norm_.weight, norm_.bias};
  if (sequence) own = sum_gradients(own, comm_, "TensorParallelGpt");
  const std::int64_t part = sequence ? time / comm_.size() : time;
  const std::int64_t first = sequence ? comm_.rank() * part : 0;

  torch::Tensor x = token_->forward(tokens.t()) + own[0].narrow(0, first, part).unsqueeze(1);
  x = drop(x, config_.dropout, is_training(), sequence, *random_);
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    x = run_block_ ? run_block_(blocks_[i], static_cast<int>(i), x) : blocks_[i]->forward(x);
  }
  x = norm_(x, own[1], own[2]);
  if (sequence && !options_.keep_gathered) return gathered_linear(x, token_->weight, {}, comm_, "head");
  x = sequence ? gather_sequence(x, comm_, "head") : copy_to_region(x, comm_, "head");
  return torch::linear(x, token_->weight);
}

torch::Tensor TensorParallelGptImpl::forward(const torch::Tensor& tokens) {
  return or_abort(comm_, "TensorParallelGpt::forward", [&] { return logits(tokens).transpose(0, 1); });
}

torch::Tensor TensorParallelGptImpl::loss(const torch::Tensor& tokens, const torch::Tensor& targets) {
  return or_abort(comm_, "TensorParallelGpt::loss", [&] {
    return vocabulary_parallel_cross_entropy(logits(tokens), targets.t(), comm_, {.vocabulary = config_.vocabulary});
  });
}

void TensorParallelGptImpl::store(Gpt whole) const {
  store_parameter(token_->whole().weight, find<nn::EmbeddingImpl>(*whole, "token")->weight);
  store_parameter(position_, find<nn::EmbeddingImpl>(*whole, "position")->weight);
  for (const TensorParallelGptBlock& block : blocks_) block->store(*whole);
  store_norm(norm_, *find<nn::LayerNormImpl>(*whole, "norm"));
}

}  // namespace tutti::training
