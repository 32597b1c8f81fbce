// A tiny vision transformer (Dosovitskiy et al.: "An image is worth 16x16 words", ICLR 2021) with the mean of all
// patches in place of a class token (Beyer, Zhai, Kolesnikov: "Better plain ViT baselines for ImageNet-1k", 2022). The
// default has 4 layers and 207,946 parameters. A plain single-device module: it knows nothing of ranks.
//
//   Vit model({.side = 28, .channels = 1});
//   torch::cross_entropy_loss(model->forward(images), labels).backward();
//   torch::nn::Sequential parts = model->layers();     // embedding, blocks, head: what a pipeline cuts into stages
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <vector>

namespace tutti::training {

struct VitConfig {
  int side = 32;     // height and width of the images; a multiple of patch
  int channels = 3;  // of the images
  int patch = 4;     // height and width of a patch
  int classes = 10;
  int layers = 4;
  int heads = 4;
  int width = 64;  // a multiple of heads
  double dropout = 0;
};

/// Images [rows, channels, side, side] f32 to [rows, patches, width].
class VitEmbeddingImpl : public torch::nn::Module {
 public:
  explicit VitEmbeddingImpl(const VitConfig& config);
  torch::Tensor forward(const torch::Tensor& images);

 private:
  torch::nn::Conv2d patches_ = nullptr;
  torch::Tensor position_;  // [1, patches, width]
};
TORCH_MODULE(VitEmbedding);

/// x + attention(norm(x)), then x + mlp(norm(x)). [rows, patches, width] to the same.
class VitBlockImpl : public torch::nn::Module {
 public:
  explicit VitBlockImpl(const VitConfig& config);
  torch::Tensor forward(torch::Tensor x);

 private:
  torch::Tensor attend(const torch::Tensor& x);

  int heads_;
  double dropout_;
  torch::nn::LayerNorm norm_attention_ = nullptr, norm_mlp_ = nullptr;
  torch::nn::Linear query_key_value_ = nullptr, attention_out_ = nullptr, mlp_in_ = nullptr, mlp_out_ = nullptr;
  torch::nn::Dropout drop_ = nullptr;
};
TORCH_MODULE(VitBlock);

/// [rows, patches, width] to logits [rows, classes].
class VitHeadImpl : public torch::nn::Module {
 public:
  explicit VitHeadImpl(const VitConfig& config);
  torch::Tensor forward(const torch::Tensor& x);

 private:
  torch::nn::LayerNorm norm_ = nullptr;
  torch::nn::Linear out_ = nullptr;
};
TORCH_MODULE(VitHead);

class VitImpl : public torch::nn::Module {
 public:
  explicit VitImpl(const VitConfig& config = {});
  /// Images [rows, channels, side, side] f32 to logits [rows, classes].
  torch::Tensor forward(const torch::Tensor& images);
  std::int64_t parameter_count() const;  // elements of trained parameters

  /// Returns these modules as one list, each from one tensor to one tensor: "embedding", "block0" and so on, "head".
  torch::nn::Sequential layers() const;
  const std::vector<VitBlock>& blocks() const { return blocks_; }

 private:
  VitEmbedding embedding_ = nullptr;
  std::vector<VitBlock> blocks_;
  VitHead head_ = nullptr;
};
TORCH_MODULE(Vit);

}  // namespace tutti::training
