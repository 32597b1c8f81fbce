// Images to train on and to be judged by: from a folder with the usual names, or synthetic.
//
//   const VisionData data = read_vision_folder("/data/cifar-10-batches-bin");
//   const VisionData data = synthetic_vision_data("shapes", 4000, 1000, /*seed=*/1);
//
// A folder holds either MNIST's four files (train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte,
//   t10k-labels-idx1-ubyte; unpacked), or CIFAR-10's binary ones (data_batch_1.bin to data_batch_5.bin, of which some
//   may be missing, and test_batch.bin).
// Errors: tutti::Error, invalid_argument, naming folder or file and what is wrong with it.
#pragma once

#include <cstdint>
#include <string>

#include "training/data/images.h"

namespace tutti::training {

struct VisionData {
  std::string name;  // "MNIST in FOLDER", "synthetic shapes", ...
  Images train, test;
  ImageScale scale;

  int channels() const { return static_cast<int>(train.pixels.size(1)); }
  int side() const { return static_cast<int>(train.pixels.size(2)); }
  static constexpr int kClasses = 10;
};

/// Errors also: images that are not square, a label above 9, no image at all.
VisionData read_vision_folder(const std::string& folder);

/// `what`: "shapes" (3 x 32 x 32) or "digits" (1 x 28 x 28). The two sets are of different seeds.
VisionData synthetic_vision_data(const std::string& what, std::int64_t train, std::int64_t test, std::uint64_t seed);

}  // namespace tutti::training
