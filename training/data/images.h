// Labelled images in memory, read from and written to the two classic layouts: MNIST's idx files and CIFAR-10's binary.
//
//   const Images train = read_mnist(folder + "/train-images-idx3-ubyte", folder + "/train-labels-idx1-ubyte");
//   const Images train = read_cifar10({folder + "/data_batch_1.bin", folder + "/data_batch_2.bin"});
//   const ImageBatch batch = train.batch(step->indices, kMnistScale);       // indices of a DistributedSampler
//
// MNIST: a file of images is four big-endian u32 (2051, count, rows, columns), then count * rows * columns bytes. A
//   file of labels is two (2049, count), then count bytes (LeCun, Cortes, Burges: "The MNIST database of handwritten
//   digits").
// CIFAR-10: records of 3073 bytes without any header: the label, then 32 x 32 bytes of red, of green and of blue, row
//   after row (Krizhevsky: "Learning multiple layers of features from tiny images", 2009, and the data set's page).
// Errors: tutti::Error, invalid_argument, naming the file and what is wrong with it; `system` when a file cannot be
//   written.
// Ownership: tensors own their memory; files are closed on return.
#pragma once

#include <torch/torch.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tutti::training {

/// Mean and deviation of each channel of a data set, for values in 0..1. Channels past the last use the last.
struct ImageScale {
  std::array<double, 3> mean = {0.5, 0.5, 0.5};
  std::array<double, 3> deviation = {0.25, 0.25, 0.25};
};
inline constexpr ImageScale kMnistScale = {{0.1307, 0.1307, 0.1307}, {0.3081, 0.3081, 0.3081}};
inline constexpr ImageScale kCifar10Scale = {{0.4914, 0.4822, 0.4465}, {0.2470, 0.2435, 0.2616}};

struct ImageBatch {
  torch::Tensor input;   // [rows, channels, height, width] f32, normalised
  torch::Tensor target;  // [rows] i64
};

struct Images {
  torch::Tensor pixels;  // [count, channels (1 or 3), height, width] u8
  torch::Tensor labels;  // [count] u8

  std::int64_t count() const { return pixels.size(0); }
  /// Errors: an index that is not 0 to count() - 1.
  ImageBatch batch(std::span<const std::int64_t> indices, const ImageScale& scale = {}) const;
};

/// u8 [n, channels, height, width] to f32 of the same shape: (value / 255 - mean) / deviation.
torch::Tensor normalised(const torch::Tensor& pixels, const ImageScale& scale);

/// One channel. Errors also: the files differ in count.
Images read_mnist(const std::string& images_path, const std::string& labels_path);
/// 3 channels, 32 x 32; the files one after another. Errors also: a label above 9.
Images read_cifar10(const std::vector<std::string>& paths);

/// `images` must have one channel.
void write_mnist(const Images& images, const std::string& images_path, const std::string& labels_path);
/// `images` must be 3 x 32 x 32, its labels at most 9.
void write_cifar10(const Images& images, const std::string& path);

}  // namespace tutti::training
