#include "training/data/images.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "training/data/mapped_file.h"
#include "tutti/tutti.hpp"

namespace tutti::training {
namespace {

using Bytes = std::span<const std::uint8_t>;

constexpr std::uint32_t kImagesMagic = 2051, kLabelsMagic = 2049;
constexpr std::uint32_t kLongestSide = 1 << 14;
constexpr std::int64_t kCifarChannels = 3, kCifarSide = 32;
constexpr std::size_t kCifarPixels = kCifarChannels * kCifarSide * kCifarSide;
constexpr std::size_t kCifarRecord = 1 + kCifarPixels;
constexpr int kCifarClasses = 10;

std::uint32_t read_big_endian(const std::uint8_t* at) {
  return std::uint32_t{at[0]} << 24 | std::uint32_t{at[1]} << 16 | std::uint32_t{at[2]} << 8 | at[3];
}

void append_big_endian(std::vector<std::uint8_t>& out, std::int64_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) out.push_back(static_cast<std::uint8_t>(value >> shift));
}

/// Returns the bytes behind a header of `header_ints` numbers, of which it checks the first.
Bytes check_header(const MappedFile& file, std::uint32_t magic, std::size_t header_ints, const char* what) {
  const Bytes bytes = file.bytes();
  if (bytes.size() < 4 * header_ints) {
    file.fail(fmt::format("has {} bytes, fewer than the {} of the header", bytes.size(), 4 * header_ints));
  }
  const std::uint32_t found = read_big_endian(bytes.data());
  if (found != magic) file.fail(fmt::format("begins with {}; an idx file of {} begins with {}", found, what, magic));
  return bytes.subspan(4 * header_ints);
}

void check_size(const MappedFile& file, Bytes data, std::uint64_t expected) {
  if (data.size() == expected) return;
  file.fail(fmt::format("has {} bytes after its header, which announces {}", data.size(), expected));
}

torch::Tensor copy_of(Bytes bytes, torch::IntArrayRef sizes) {
  torch::Tensor tensor = torch::empty(sizes, torch::kUInt8);
  if (!bytes.empty()) std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

std::span<const std::byte> bytes_of(const torch::Tensor& contiguous) {
  return {static_cast<const std::byte*>(contiguous.data_ptr()), contiguous.nbytes()};
}

/// Returns both tensors, contiguous, for a writer.
Images checked(const Images& images, std::int64_t channels, const char* writer) {
  const torch::Tensor &pixels = images.pixels, &labels = images.labels;
  const bool good = pixels.defined() && labels.defined() && pixels.dim() == 4 && pixels.size(1) == channels &&
                    labels.dim() == 1 && labels.size(0) == pixels.size(0) && pixels.scalar_type() == torch::kUInt8 &&
                    labels.scalar_type() == torch::kUInt8;
  if (!good) {
    throw Error(
        Code::invalid_argument,
        fmt::format("{}: pixels must be u8 [count, {}, height, width] and labels u8 [count]", writer, channels));
  }
  return {pixels.contiguous(), labels.contiguous()};
}

}  // namespace

torch::Tensor normalised(const torch::Tensor& pixels, const ImageScale& scale) {
  const std::int64_t channels = pixels.size(1);
  std::vector<float> mean, factor;
  for (std::int64_t i = 0; i < channels; ++i) {
    const auto at = static_cast<std::size_t>(std::min<std::int64_t>(i, 2));
    mean.push_back(static_cast<float>(scale.mean[at] * 255));
    factor.push_back(static_cast<float>(1 / (scale.deviation[at] * 255)));
  }
  const auto by_channel = [&](const std::vector<float>& values) {
    return torch::tensor(values).view({channels, 1, 1});
  };
  return pixels.to(torch::kFloat32).sub_(by_channel(mean)).mul_(by_channel(factor));
}

ImageBatch Images::batch(std::span<const std::int64_t> indices, const ImageScale& scale) const {
  for (std::int64_t index : indices) {
    if (index >= 0 && index < count()) continue;
    throw Error(Code::invalid_argument, fmt::format("Images: batch: index {} of {} images", index, count()));
  }
  const torch::Tensor rows = torch::tensor(c10::IntArrayRef(indices.data(), indices.size()), torch::kInt64);
  return {normalised(pixels.index_select(0, rows), scale), labels.index_select(0, rows).to(torch::kInt64)};
}

Images read_mnist(const std::string& images_path, const std::string& labels_path) {
  const MappedFile images("MNIST images", images_path), labels("MNIST labels", labels_path);
  const Bytes pixels = check_header(images, kImagesMagic, 4, "images");
  const std::uint32_t count = read_big_endian(images.bytes().data() + 4);
  const std::uint32_t height = read_big_endian(images.bytes().data() + 8);
  const std::uint32_t width = read_big_endian(images.bytes().data() + 12);
  if (height < 1 || width < 1 || height > kLongestSide || width > kLongestSide) {
    images.fail(fmt::format("announces images of {} x {}; 1 to {} is possible", height, width, kLongestSide));
  }
  check_size(images, pixels, std::uint64_t{count} * height * width);
  const Bytes classes = check_header(labels, kLabelsMagic, 2, "labels");
  const std::uint32_t labels_count = read_big_endian(labels.bytes().data() + 4);
  check_size(labels, classes, labels_count);
  if (labels_count != count) {
    labels.fail(fmt::format("holds {} labels, '{}' {} images", labels_count, images_path, count));
  }
  return {copy_of(pixels, {count, 1, height, width}), copy_of(classes, {count})};
}

Images read_cifar10(const std::vector<std::string>& paths) {
  if (paths.empty()) throw Error(Code::invalid_argument, "CIFAR-10: no file given");
  std::vector<MappedFile> files;
  std::size_t count = 0;
  for (const std::string& path : paths) {
    const MappedFile& file = files.emplace_back("CIFAR-10", path);
    const std::size_t size = file.bytes().size();
    if (size == 0 || size % kCifarRecord != 0) {
      file.fail(fmt::format("has {} bytes, which is no multiple of the {} of a record", size, kCifarRecord));
    }
    count += size / kCifarRecord;
  }
  Images images{torch::empty({static_cast<std::int64_t>(count), kCifarChannels, kCifarSide, kCifarSide}, torch::kUInt8),
                torch::empty({static_cast<std::int64_t>(count)}, torch::kUInt8)};
  auto* pixels = images.pixels.data_ptr<std::uint8_t>();
  auto* labels = images.labels.data_ptr<std::uint8_t>();
  for (const MappedFile& file : files) {
    for (std::size_t at = 0; at < file.bytes().size(); at += kCifarRecord) {
      const std::uint8_t* record = file.bytes().data() + at;
      if (*record >= kCifarClasses) {
        file.fail(fmt::format("image {} has label {}; labels are 0 to 9", at / kCifarRecord, *record));
      }
      *labels++ = *record;
      std::memcpy(pixels, record + 1, kCifarPixels);
      pixels += kCifarPixels;
    }
  }
  return images;
}

void write_mnist(const Images& images, const std::string& images_path, const std::string& labels_path) {
  const Images good = checked(images, 1, "write_mnist");
  std::vector<std::uint8_t> header;
  for (std::int64_t value : {std::int64_t{kImagesMagic}, good.count(), good.pixels.size(2), good.pixels.size(3)}) {
    append_big_endian(header, value);
  }
  write_file("MNIST images", images_path, {std::as_bytes(std::span(header)), bytes_of(good.pixels)});
  header.clear();
  for (std::int64_t value : {std::int64_t{kLabelsMagic}, good.count()}) append_big_endian(header, value);
  write_file("MNIST labels", labels_path, {std::as_bytes(std::span(header)), bytes_of(good.labels)});
}

void write_cifar10(const Images& images, const std::string& path) {
  const Images good = checked(images, kCifarChannels, "write_cifar10");
  if (good.pixels.size(2) != kCifarSide || good.pixels.size(3) != kCifarSide) {
    throw Error(Code::invalid_argument, fmt::format("write_cifar10: images of {} x {}; the layout has 32 x 32",
                                                    good.pixels.size(2), good.pixels.size(3)));
  }
  std::vector<std::uint8_t> bytes;
  bytes.reserve(static_cast<std::size_t>(good.count()) * kCifarRecord);
  const auto* pixels = good.pixels.data_ptr<std::uint8_t>();
  const auto* labels = good.labels.data_ptr<std::uint8_t>();
  for (std::int64_t i = 0; i < good.count(); ++i, pixels += kCifarPixels) {
    if (labels[i] >= kCifarClasses) {
      throw Error(Code::invalid_argument,
                  fmt::format("write_cifar10: image {} has label {}; labels are 0 to 9", i, labels[i]));
    }
    bytes.push_back(labels[i]);
    bytes.insert(bytes.end(), pixels, pixels + kCifarPixels);
  }
  write_file("CIFAR-10", path, {std::as_bytes(std::span(bytes))});
}

}  // namespace tutti::training
