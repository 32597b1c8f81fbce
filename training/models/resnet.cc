#include "training/models/resnet.h"

#include <cstddef>
#include <string>

namespace tutti::training {
namespace {

namespace nn = torch::nn;

nn::Conv2d conv(int in, int out, int size, int stride) {
  nn::Conv2d layer(nn::Conv2dOptions(in, out, size).stride(stride).padding(size / 2).bias(false));
  nn::init::kaiming_normal_(layer->weight, 0, torch::kFanOut, torch::kReLU);
  return layer;
}

}  // namespace

ResNetBlockImpl::ResNetBlockImpl(int in, int out, int stride) {
  conv1_ = register_module("conv1", conv(in, out, 3, stride));
  norm1_ = register_module("norm1", nn::BatchNorm2d(out));
  conv2_ = register_module("conv2", conv(out, out, 3, 1));
  norm2_ = register_module("norm2", nn::BatchNorm2d(out));
  if (in == out && stride == 1) return;
  project_ = register_module("project", conv(in, out, 1, stride));
  project_norm_ = register_module("project_norm", nn::BatchNorm2d(out));
}

torch::Tensor ResNetBlockImpl::forward(const torch::Tensor& x) {
  const torch::Tensor y = norm2_->forward(conv2_->forward(torch::relu(norm1_->forward(conv1_->forward(x)))));
  return torch::relu(y + (project_ ? project_norm_->forward(project_->forward(x)) : x));
}

ResNetImpl::ResNetImpl(const ResNetConfig& config) {
  TORCH_CHECK(!config.widths.empty() && config.blocks > 0, "resnet: needs at least one stage and one block per stage");
  int width = config.widths[0];
  stem_ = register_module("stem", conv(config.channels, width, 3, 1));
  stem_norm_ = register_module("stem_norm", nn::BatchNorm2d(width));
  for (std::size_t stage = 0; stage < config.widths.size(); ++stage) {
    for (int i = 0; i < config.blocks; ++i) {
      const int stride = stage > 0 && i == 0 ? 2 : 1;
      blocks_.push_back(
          register_module("block" + std::to_string(blocks_.size()), ResNetBlock(width, config.widths[stage], stride)));
      width = config.widths[stage];
    }
  }
  head_ = register_module("head", nn::Linear(width, config.classes));
}

torch::Tensor ResNetImpl::forward(const torch::Tensor& images) {
  torch::Tensor x = torch::relu(stem_norm_->forward(stem_->forward(images)));
  for (ResNetBlock& block : blocks_) x = block->forward(x);
  return head_->forward(x.mean({2, 3}));
}

std::int64_t ResNetImpl::parameter_count() const {
  std::int64_t count = 0;
  for (const torch::Tensor& parameter : parameters()) count += parameter.requires_grad() ? parameter.numel() : 0;
  return count;
}

}  // namespace tutti::training
