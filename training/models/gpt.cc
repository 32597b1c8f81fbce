#include "training/models/gpt.h"

#include <cmath>
#include <cstddef>
#include <string>

namespace tutti::training {
namespace {

namespace nn = torch::nn;

constexpr double kGptInitialDeviation = 0.02;

torch::Tensor attention(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v, double dropout) {
  return at::scaled_dot_product_attention(q, k, v, /*attn_mask=*/{}, dropout, /*is_causal=*/true);
}

// torch::nn::LayerNorm has no option for "weight but no bias"; dropping the bias from the parameters is the same thing.
nn::LayerNorm layer_norm(const GptConfig& config) {
  nn::LayerNorm norm(nn::LayerNormOptions({config.width}));
  if (!config.bias) norm->bias.set_requires_grad(false);
  return norm;
}

}  // namespace

GptBlockImpl::GptBlockImpl(const GptConfig& config) : heads_(config.heads), dropout_(config.dropout) {
  const int width = config.width;
  TORCH_CHECK(width % heads_ == 0, "gpt: width ", width, " is not a multiple of heads ", heads_);
  const auto linear = [&](int in, int out) { return nn::Linear(nn::LinearOptions(in, out).bias(config.bias)); };
  norm_attention_ = register_module("norm_attention", layer_norm(config));
  query_key_value_ = register_module("query_key_value", linear(width, 3 * width));
  attention_out_ = register_module("attention_out", linear(width, width));
  norm_mlp_ = register_module("norm_mlp", layer_norm(config));
  mlp_in_ = register_module("mlp_in", linear(width, 4 * width));
  mlp_out_ = register_module("mlp_out", linear(4 * width, width));
  drop_ = register_module("drop", nn::Dropout(dropout_));

  torch::NoGradGuard no_grad;
  for (nn::Linear layer : {query_key_value_, attention_out_, mlp_in_, mlp_out_}) {
    // Two of them add to the residual stream in each layer: scaled so that its variance does not grow with depth.
    const bool adds = layer.get() == attention_out_.get() || layer.get() == mlp_out_.get();
    layer->weight.normal_(0, adds ? kGptInitialDeviation / std::sqrt(2.0 * config.layers) : kGptInitialDeviation);
    if (config.bias) layer->bias.zero_();
  }
}

torch::Tensor GptBlockImpl::attend(const torch::Tensor& x) {
  const std::int64_t rows = x.size(0), time = x.size(1), width = x.size(2);
  const std::vector<torch::Tensor> parts = query_key_value_->forward(x).split(width, 2);
  const auto by_head = [&](const torch::Tensor& part) {  // [rows, heads, time, width / heads]
    return part.view({rows, time, heads_, width / heads_}).transpose(1, 2);
  };
  const torch::Tensor y =
      attention(by_head(parts[0]), by_head(parts[1]), by_head(parts[2]), is_training() ? dropout_ : 0.0);
  return drop_->forward(attention_out_->forward(y.transpose(1, 2).contiguous().view({rows, time, width})));
}

torch::Tensor GptBlockImpl::forward(torch::Tensor x) {
  x = x + attend(norm_attention_->forward(x));
  return x + drop_->forward(mlp_out_->forward(torch::gelu(mlp_in_->forward(norm_mlp_->forward(x)))));
}

GptImpl::GptImpl(const GptConfig& config) : config_(config) {
  token_ = register_module("token", nn::Embedding(config.vocabulary, config.width));
  position_ = register_module("position", nn::Embedding(config.context, config.width));
  drop_ = register_module("drop", nn::Dropout(config.dropout));
  for (int i = 0; i < config.layers; ++i) {
    blocks_.push_back(register_module("block" + std::to_string(i), GptBlock(config)));
  }
  norm_ = register_module("norm", layer_norm(config));

  torch::NoGradGuard no_grad;
  token_->weight.normal_(0, kGptInitialDeviation);
  position_->weight.normal_(0, kGptInitialDeviation);
}

torch::Tensor GptParts::embed(const torch::Tensor& tokens) {
  const torch::Tensor positions = torch::arange(tokens.size(1), tokens.options());
  return drop->forward(token->forward(tokens) + position->forward(positions));
}

torch::Tensor GptParts::head(const torch::Tensor& x) { return torch::linear(norm->forward(x), token->weight); }

torch::Tensor GptImpl::forward(const torch::Tensor& tokens) {
  torch::Tensor x = parts().embed(tokens);
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    x = run_block_ ? run_block_(blocks_[i], static_cast<int>(i), x) : blocks_[i]->forward(x);
  }
  return parts().head(x);
}

torch::Tensor GptImpl::loss(const torch::Tensor& tokens, const torch::Tensor& targets) {
  return torch::cross_entropy_loss(forward(tokens).view({-1, config_.vocabulary}), targets.view(-1));
}

std::int64_t GptImpl::parameter_count() const {
  std::int64_t count = 0;
  for (const torch::Tensor& parameter : parameters()) count += parameter.requires_grad() ? parameter.numel() : 0;
  return count;
}

}  // namespace tutti::training
