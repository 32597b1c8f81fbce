#include "training/trainers/vision/data.h"

#include <fmt/format.h>

#include <filesystem>
#include <vector>

#include "training/data/random.h"
#include "training/data/synthetic.h"
#include "tutti/tutti.hpp"

namespace tutti::training {
namespace {

namespace fs = std::filesystem;

constexpr int kCifarFiles = 5;

void check_usable(const Images& images, const std::string& folder, const char* set) {
  const auto fail = [&](const std::string& what) {
    throw Error(Code::invalid_argument, fmt::format("images in '{}': the {} set {}", folder, set, what));
  };
  if (images.count() == 0) fail("is empty; expected at least one image");
  if (images.pixels.size(2) != images.pixels.size(3)) {
    fail(fmt::format("has images of {} x {}; expected square ones", images.pixels.size(2), images.pixels.size(3)));
  }
  const int largest = images.labels.max().item<int>();
  if (largest >= VisionData::kClasses) fail(fmt::format("has label {}; expected 0 to 9", largest));
}

}  // namespace

VisionData read_vision_folder(const std::string& folder) {
  const auto path = [&](const std::string& name) { return (fs::path(folder) / name).string(); };
  std::vector<std::string> batches;
  for (int i = 1; i <= kCifarFiles; ++i) {
    const std::string batch = path(fmt::format("data_batch_{}.bin", i));
    if (fs::exists(batch)) batches.push_back(batch);
  }
  VisionData data;
  if (!batches.empty()) {
    data = {fmt::format("CIFAR-10 in {}", folder), read_cifar10(batches), read_cifar10({path("test_batch.bin")}),
            kCifar10Scale};
  } else if (fs::exists(path("train-images-idx3-ubyte"))) {
    data = {fmt::format("MNIST in {}", folder),
            read_mnist(path("train-images-idx3-ubyte"), path("train-labels-idx1-ubyte")),
            read_mnist(path("t10k-images-idx3-ubyte"), path("t10k-labels-idx1-ubyte")), kMnistScale};
  } else {
    throw Error(
        Code::invalid_argument,
        fmt::format("images in '{}': neither train-images-idx3-ubyte (MNIST) nor data_batch_1.bin (CIFAR-10) is "
                    "there",
                    folder));
  }
  check_usable(data.train, folder, "training");
  check_usable(data.test, folder, "test");
  if (data.test.pixels.sizes().slice(1) != data.train.pixels.sizes().slice(1)) {
    throw Error(Code::invalid_argument,
                fmt::format("images in '{}': the test set has images of another size than the training set", folder));
  }
  return data;
}

VisionData synthetic_vision_data(const std::string& what, std::int64_t train, std::int64_t test, std::uint64_t seed) {
  if (train < 1 || test < 1) {
    throw Error(
        Code::invalid_argument,
        fmt::format("synthetic images: {} to train on and {} to test with; expected at least one each", train, test));
  }
  const std::uint64_t test_seed = mix64(seed);
  if (what == "digits") {
    return {"synthetic digits", synthetic_digits(train, seed), synthetic_digits(test, test_seed), kMnistScale};
  }
  if (what == "shapes") {
    return {"synthetic shapes", synthetic_shapes(train, seed), synthetic_shapes(test, test_seed), kCifar10Scale};
  }
  throw Error(Code::invalid_argument, fmt::format("synthetic images: no '{}'; expected 'shapes' or 'digits'", what));
}

}  // namespace tutti::training
