#include "training/data/images.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <initializer_list>
#include <set>

#include "tests/training/data/support.h"
#include "training/data/synthetic.h"

namespace tutti::training::images_test {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Bytes = std::vector<std::uint8_t>;

constexpr std::uint64_t kSeed = 20261124;  // of the random cases; each failure prints its case

torch::Tensor u8(std::initializer_list<int> values) {
  return torch::tensor(std::vector<int>(values)).to(torch::kUInt8);
}

Images two_small_images() { return {u8({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 255}).view({2, 1, 2, 3}), u8({7, 3})}; }

TEST(Images, MnistFilesAreIdxFiles) {
  const TempFolder folder;
  const std::string images = folder / "images", labels = folder / "labels";
  write_mnist(two_small_images(), images, labels);
  EXPECT_EQ(bytes_of_file(images), (Bytes{0, 0, 8, 3, 0, 0, 0, 2, 0, 0,  0,  2,  0, 0, 0, 3,  //
                                          1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 255}));
  EXPECT_EQ(bytes_of_file(labels), (Bytes{0, 0, 8, 1, 0, 0, 0, 2, 7, 3}));
  const Images again = read_mnist(images, labels);
  EXPECT_TRUE(torch::equal(again.pixels, two_small_images().pixels));
  EXPECT_TRUE(torch::equal(again.labels, two_small_images().labels));
}

TEST(Images, LibTorchsOwnReaderReadsOurMnistFiles) {
  const TempFolder folder;
  const Images synthetic = synthetic_digits(10'000, 3);  // its reader insists on the test set's true size
  write_mnist(synthetic, folder / "t10k-images-idx3-ubyte", folder / "t10k-labels-idx1-ubyte");
  const torch::data::datasets::MNIST theirs(folder.path(), torch::data::datasets::MNIST::Mode::kTest);
  EXPECT_TRUE(torch::equal(theirs.images(), synthetic.pixels.to(torch::kFloat32).div(255)));
  EXPECT_TRUE(torch::equal(theirs.targets(), synthetic.labels.to(torch::kInt64)));
}

TEST(Images, CifarRecordsAreLabelThenPlanes) {
  const TempFolder folder;
  const std::string path = folder / "batch.bin", other = folder / "other.bin";
  Images one{torch::zeros({1, 3, 32, 32}, torch::kUInt8), u8({9})};
  one.pixels[0][0][0][0] = 10;    // red, first
  one.pixels[0][0][1][2] = 11;    // red, row 1, column 2
  one.pixels[0][1][0][0] = 20;    // green
  one.pixels[0][2][31][31] = 30;  // blue, last
  write_cifar10(one, path);
  Bytes expected(3073);
  expected[0] = 9;
  expected[1] = 10;
  expected[1 + 32 + 2] = 11;
  expected[1 + 1024] = 20;
  expected[3072] = 30;
  EXPECT_EQ(bytes_of_file(path), expected);

  const Images synthetic = synthetic_shapes(5, 1);
  write_cifar10(synthetic, other);
  const Images both = read_cifar10({path, other});
  EXPECT_TRUE(torch::equal(both.pixels, torch::cat({one.pixels, synthetic.pixels})));
  EXPECT_TRUE(torch::equal(both.labels, torch::cat({one.labels, synthetic.labels})));
}

TEST(Images, BatchesAreNormalisedByChannel) {
  const Images images = synthetic_shapes(6, 2);
  const std::vector<std::int64_t> indices = {4, 0, 4};
  const ImageBatch batch = images.batch(indices, kCifar10Scale);
  ASSERT_EQ(batch.input.sizes(), (std::vector<std::int64_t>{3, 3, 32, 32}));
  ASSERT_EQ(batch.input.scalar_type(), torch::kFloat32);
  ASSERT_EQ(batch.target.scalar_type(), torch::kInt64);
  for (std::int64_t row = 0; row < 3; ++row) {
    const std::int64_t index = indices[static_cast<std::size_t>(row)];
    EXPECT_EQ(batch.target[row].item<int>(), images.labels[index].item<int>());
    for (std::int64_t c = 0; c < 3; ++c) {
      const auto at = static_cast<std::size_t>(c);
      const torch::Tensor expected =
          (images.pixels[index][c].to(torch::kFloat64) / 255 - kCifar10Scale.mean[at]) / kCifar10Scale.deviation[at];
      // f32: values up to 255 with three roundings of 2^-24 each, times 1/62: below 1e-6.
      EXPECT_TRUE(torch::allclose(batch.input[row][c].to(torch::kFloat64), expected, 0, 2e-6));
    }
  }
  EXPECT_EQ(images.batch({}).input.size(0), 0);  // a rank's empty share
  const std::vector<std::int64_t> wrong = {6};
  EXPECT_EQ(error_of([&] { images.batch(wrong); }), "Images: batch: index 6 of 6 images");
}

TEST(Images, SyntheticImagesDependOnSeedAndIndexAlone) {
  for (auto* make : {synthetic_digits, synthetic_shapes}) {
    const Images images = make(300, 1), fewer = make(20, 1), others = make(300, 2);
    EXPECT_TRUE(torch::equal(images.pixels.slice(0, 0, 20), fewer.pixels));
    EXPECT_TRUE(torch::equal(images.labels.slice(0, 0, 20), fewer.labels));
    EXPECT_FALSE(torch::equal(images.pixels, others.pixels));
    EXPECT_FALSE(torch::equal(images.labels, others.labels));
    std::set<int> labels;
    for (std::int64_t i = 0; i < images.count(); ++i) {
      labels.insert(images.labels[i].item<int>());
      EXPECT_GT(images.pixels[i].to(torch::kFloat32).std().item<float>(), 10) << "image " << i << " is blank";
    }
    EXPECT_EQ(labels, (std::set<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  }
  EXPECT_EQ(synthetic_digits(0, 1).count(), 0);
  EXPECT_EQ(error_of([] { synthetic_digits(-1, 1); }), "synthetic_digits: a count of -1");
}

// A class that cannot be told from another, or a picture that leaves its frame, would make a poor data set: the nearest
// of 2000 synthetic images has to have the right label far more often than the one time in ten of a guess.
TEST(Images, SyntheticClassesCanBeToldApart) {
  const auto share_right = [](Images (*make)(std::int64_t, std::uint64_t)) {
    const Images known = make(2000, 1), asked = make(300, 2);
    const auto flat = [](const Images& images) {
      torch::Tensor x = images.pixels.to(torch::kFloat32).mean(1).flatten(1);  // grey
      return (x - x.mean(1, true)) / x.std(1, true, true);
    };
    const torch::Tensor near = torch::matmul(flat(asked), flat(known).t()).abs().argmax(1);  // dark on light, too
    return known.labels.index_select(0, near).eq(asked.labels).to(torch::kFloat32).mean().item<float>();
  };
  const float digits = share_right(synthetic_digits), shapes = share_right(synthetic_shapes);
  RecordProperty("digits", std::to_string(digits));
  RecordProperty("shapes", std::to_string(shapes));
  EXPECT_GT(digits, 0.85);
  EXPECT_GT(shapes, 0.5);
}

TEST(Images, ErrorsNameTheFileAndWhatIsWrong) {
  const TempFolder folder;
  const std::string images = folder / "images", labels = folder / "labels", cifar = folder / "cifar";
  write_mnist(two_small_images(), images, labels);
  const Bytes good_images = bytes_of_file(images), good_labels = bytes_of_file(labels);
  const auto changed = [](Bytes bytes, std::size_t at, std::uint8_t value, std::size_t size) {
    bytes[at] = value;
    bytes.resize(size);
    return bytes;
  };
  const auto error_with = [&](const Bytes& image_bytes, const Bytes& label_bytes) {
    write_bytes(images, image_bytes);
    write_bytes(labels, label_bytes);
    return error_of([&] { read_mnist(images, labels); });
  };
  const std::string of_images = "MNIST images: '" + images + "': ", of_labels = "MNIST labels: '" + labels + "': ";
  EXPECT_EQ(error_with(changed(good_images, 0, 0, 15), good_labels),
            of_images + "has 15 bytes, fewer than the 16 of the header");
  EXPECT_EQ(error_with(good_labels, good_labels), of_images + "has 10 bytes, fewer than the 16 of the header");
  EXPECT_EQ(error_with(changed(good_images, 3, 1, 28), good_labels),
            of_images + "begins with 2049; an idx file of images begins with 2051");
  EXPECT_EQ(error_with(good_images, good_images),
            of_labels + "begins with 2051; an idx file of labels begins with 2049");
  EXPECT_EQ(error_with(changed(good_images, 0, 0, 27), good_labels),
            of_images + "has 11 bytes after its header, which announces 12");
  EXPECT_EQ(error_with(changed(good_images, 8, 255, 28), good_labels),
            of_images + "announces images of 4278190082 x 3; 1 to 16384 is possible");
  EXPECT_EQ(error_with(good_images, changed(good_labels, 0, 0, 11)),
            of_labels + "has 3 bytes after its header, which announces 2");
  EXPECT_EQ(error_with(good_images, changed(good_labels, 7, 3, 11)),
            of_labels + "holds 3 labels, '" + images + "' 2 images");

  const auto cifar_error_with = [&](const Bytes& bytes) {
    write_bytes(cifar, bytes);
    return error_of([&] { read_cifar10({cifar}); });
  };
  const std::string of_cifar = "CIFAR-10: '" + cifar + "': ";
  EXPECT_EQ(cifar_error_with({}), of_cifar + "has 0 bytes, which is no multiple of the 3073 of a record");
  EXPECT_EQ(cifar_error_with(Bytes(3074)), of_cifar + "has 3074 bytes, which is no multiple of the 3073 of a record");
  Bytes wrong_label(2 * 3073);
  wrong_label[3073] = 10;
  EXPECT_EQ(cifar_error_with(wrong_label), of_cifar + "image 1 has label 10; labels are 0 to 9");
  EXPECT_EQ(error_of([] { read_cifar10({}); }), "CIFAR-10: no file given");
  EXPECT_THAT(error_of([] { read_cifar10({"/no/such/file"}); }), HasSubstr("'/no/such/file': cannot be opened"));
}

TEST(Images, WritersRefuseOtherShapes) {
  const TempFolder folder;
  const Images digits = synthetic_digits(2, 1), shapes = synthetic_shapes(2, 1);
  EXPECT_EQ(error_of([&] { write_mnist(shapes, folder / "i", folder / "l"); }),
            "write_mnist: pixels must be u8 [count, 1, height, width] and labels u8 [count]");
  EXPECT_THAT(error_of([&] { write_cifar10(digits, folder / "c"); }), StartsWith("write_cifar10: pixels must be u8"));
  EXPECT_THAT(error_of([&] {
                write_mnist({digits.pixels, shapes.labels.slice(0, 1)}, folder / "i", folder / "l");
              }),
              StartsWith("write_mnist: pixels must be"));
  EXPECT_THAT(error_of([&] {
                write_cifar10({torch::zeros({1, 3, 8, 8}, torch::kUInt8), u8({1})}, folder / "c");
              }),
              EndsWith("images of 8 x 8; the layout has 32 x 32"));
  EXPECT_THAT(error_of([&] {
                write_cifar10({shapes.pixels, u8({1, 10})}, folder / "c");
              }),
              EndsWith("image 1 has label 10; labels are 0 to 9"));
  EXPECT_THAT(error_of([&] { write_mnist(digits, "/no/such/folder/i", folder / "l"); }),
              EndsWith("'/no/such/folder/i': cannot be written"));
}

// Whatever the files hold: they are read, or refused by name. Run under a sanitizer this looks for more.
TEST(Images, DamagedFilesAreReadOrRefusedByName) {
  const TempFolder folder;
  const std::string images = folder / "images", labels = folder / "labels", cifar = folder / "cifar";
  write_mnist(synthetic_digits(3, 1), images, labels);
  write_cifar10(synthetic_shapes(2, 1), cifar);
  const Bytes good_images = bytes_of_file(images), good_labels = bytes_of_file(labels),
              good_cifar = bytes_of_file(cifar);
  Random random(kSeed);
  int refused = 0;
  constexpr int kCases = 600;
  for (int i = 0; i < kCases; ++i) {
    SCOPED_TRACE(::testing::Message() << "case " << i);
    const std::uint64_t which = random.below(3);
    const std::string& path = which == 0 ? images : which == 1 ? labels : cifar;
    const Bytes& good = which == 0 ? good_images : which == 1 ? good_labels : good_cifar;
    write_bytes(path, mutated(good, random));
    const std::string error = error_of([&] {
      const Images mnist = read_mnist(images, labels);
      EXPECT_EQ(mnist.labels.size(0), mnist.count());
      EXPECT_GT(read_cifar10({cifar}).count(), 0);
    });
    write_bytes(path, good);
    if (error.empty()) continue;
    ++refused;
    EXPECT_THAT(error, HasSubstr("'" + path + "'"));
  }
  EXPECT_GT(refused, kCases / 2);
  EXPECT_LT(refused, kCases);
}

}  // namespace
}  // namespace tutti::training::images_test
