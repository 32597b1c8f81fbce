#include "training/models/vit.h"

#include <cstddef>
#include <string>

namespace tutti::training {
namespace {

namespace nn = torch::nn;

constexpr double kVitInitialDeviation = 0.02;

nn::LayerNorm layer_norm(const VitConfig& config) { return nn::LayerNorm(nn::LayerNormOptions({config.width})); }

nn::Linear linear(int in, int out) {
  nn::Linear layer(in, out);
  nn::init::xavier_uniform_(layer->weight);
  nn::init::zeros_(layer->bias);
  return layer;
}

}  // namespace

VitEmbeddingImpl::VitEmbeddingImpl(const VitConfig& config) {
  TORCH_CHECK(config.patch > 0 && config.side % config.patch == 0, "vit: side ", config.side,
              " is not a multiple of patch ", config.patch);
  const int across = config.side / config.patch;
  patches_ = register_module(
      "patches", nn::Conv2d(nn::Conv2dOptions(config.channels, config.width, config.patch).stride(config.patch)));
  position_ = register_parameter("position", torch::randn({1, across * across, config.width}) * kVitInitialDeviation);
}

torch::Tensor VitEmbeddingImpl::forward(const torch::Tensor& images) {
  return patches_->forward(images).flatten(2).transpose(1, 2) + position_;
}

VitBlockImpl::VitBlockImpl(const VitConfig& config) : heads_(config.heads), dropout_(config.dropout) {
  const int width = config.width;
  TORCH_CHECK(heads_ > 0 && width % heads_ == 0, "vit: width ", width, " is not a multiple of heads ", heads_);
  norm_attention_ = register_module("norm_attention", layer_norm(config));
  query_key_value_ = register_module("query_key_value", linear(width, 3 * width));
  attention_out_ = register_module("attention_out", linear(width, width));
  norm_mlp_ = register_module("norm_mlp", layer_norm(config));
  mlp_in_ = register_module("mlp_in", linear(width, 4 * width));
  mlp_out_ = register_module("mlp_out", linear(4 * width, width));
  drop_ = register_module("drop", nn::Dropout(dropout_));
}

torch::Tensor VitBlockImpl::attend(const torch::Tensor& x) {
  const std::int64_t rows = x.size(0), patches = x.size(1), width = x.size(2);
  const std::vector<torch::Tensor> parts = query_key_value_->forward(x).split(width, 2);
  const auto by_head = [&](const torch::Tensor& part) {  // [rows, heads, patches, width / heads]
    return part.view({rows, patches, heads_, width / heads_}).transpose(1, 2);
  };
  const torch::Tensor y = at::scaled_dot_product_attention(by_head(parts[0]), by_head(parts[1]), by_head(parts[2]),
                                                           /*attn_mask=*/{}, is_training() ? dropout_ : 0.0);
  return drop_->forward(attention_out_->forward(y.transpose(1, 2).contiguous().view({rows, patches, width})));
}

torch::Tensor VitBlockImpl::forward(torch::Tensor x) {
  x = x + attend(norm_attention_->forward(x));
  return x + drop_->forward(mlp_out_->forward(torch::gelu(mlp_in_->forward(norm_mlp_->forward(x)))));
}

VitHeadImpl::VitHeadImpl(const VitConfig& config) {
  norm_ = register_module("norm", layer_norm(config));
  out_ = register_module("out", linear(config.width, config.classes));
  nn::init::zeros_(out_->weight);  // all classes equally likely at first, as in the paper
}

torch::Tensor VitHeadImpl::forward(const torch::Tensor& x) { return out_->forward(norm_->forward(x).mean(1)); }

VitImpl::VitImpl(const VitConfig& config) {
  embedding_ = register_module("embedding", VitEmbedding(config));
  for (int i = 0; i < config.layers; ++i) {
    blocks_.push_back(register_module("block" + std::to_string(i), VitBlock(config)));
  }
  head_ = register_module("head", VitHead(config));
}

torch::Tensor VitImpl::forward(const torch::Tensor& images) {
  torch::Tensor x = embedding_->forward(images);
  for (VitBlock& block : blocks_) x = block->forward(x);
  return head_->forward(x);
}

torch::nn::Sequential VitImpl::layers() const {
  nn::Sequential list;
  list->push_back("embedding", embedding_);
  for (std::size_t i = 0; i < blocks_.size(); ++i) list->push_back("block" + std::to_string(i), blocks_[i]);
  list->push_back("head", head_);
  return list;
}

std::int64_t VitImpl::parameter_count() const {
  std::int64_t count = 0;
  for (const torch::Tensor& parameter : parameters()) count += parameter.requires_grad() ? parameter.numel() : 0;
  return count;
}

}  // namespace tutti::training
