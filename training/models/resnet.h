// A small residual network with batch norm for images of about 32 x 32 (He, Zhang, Ren, Sun: "Deep residual learning
// for image recognition", CVPR 2016, section 4.2, with a projection where the width changes). The default is ResNet-8:
// one block per stage, 78,042 parameters. A plain single-device module: it knows nothing of ranks.
//
//   ResNet model({.channels = 1});
//   torch::cross_entropy_loss(model->forward(images), labels).backward();
//
// Batch norm: in training each rank normalises by the statistics of its own rows. The running statistics, used in
// evaluation, are buffers: DistributedDataParallel gives all ranks rank 0's.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <vector>

namespace tutti::training {

struct ResNetConfig {
  int channels = 3;  // of the images
  int classes = 10;
  std::vector<int> widths = {16, 32, 64};  // of the stages; each but the first halves height and width
  int blocks = 1;                          // per stage
};

/// relu(x + norm(conv(relu(norm(conv(x)))))), x projected when the shape changes.
/// [rows, in, h, w] to [rows, out, h / stride, w / stride].
class ResNetBlockImpl : public torch::nn::Module {
 public:
  ResNetBlockImpl(int in, int out, int stride);
  torch::Tensor forward(const torch::Tensor& x);

 private:
  torch::nn::Conv2d conv1_ = nullptr, conv2_ = nullptr, project_ = nullptr;
  torch::nn::BatchNorm2d norm1_ = nullptr, norm2_ = nullptr, project_norm_ = nullptr;
};
TORCH_MODULE(ResNetBlock);

class ResNetImpl : public torch::nn::Module {
 public:
  explicit ResNetImpl(const ResNetConfig& config = {});
  /// Images [rows, channels, height, width] f32 of any size to logits [rows, classes].
  torch::Tensor forward(const torch::Tensor& images);
  std::int64_t parameter_count() const;  // elements of trained parameters

 private:
  torch::nn::Conv2d stem_ = nullptr;
  torch::nn::BatchNorm2d stem_norm_ = nullptr;
  std::vector<ResNetBlock> blocks_;
  torch::nn::Linear head_ = nullptr;
};
TORCH_MODULE(ResNet);

}  // namespace tutti::training
