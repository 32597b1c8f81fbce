#include "training/data/text.h"

#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <utility>

#include "training/data/random.h"
#include "tutti/tutti.hpp"

namespace tutti::training {

ByteText::ByteText(std::vector<std::uint8_t> bytes, double validation_share) : bytes_(std::move(bytes)) {
  if (!(validation_share >= 0 && validation_share <= 1)) {
    throw Error(Code::invalid_argument, fmt::format("text: validation_share is {}; expected 0 to 1", validation_share));
  }
  split_ = bytes_.size() - static_cast<std::size_t>(static_cast<double>(bytes_.size()) * validation_share);
}

ByteText ByteText::load(const std::vector<std::string>& files, double validation_share) {
  std::vector<std::uint8_t> bytes;
  for (const std::string& file : files) {
    std::ifstream in(file, std::ios::binary);
    if (in) bytes.insert(bytes.end(), std::istreambuf_iterator<char>(in), {});
    if (!in) throw Error(Code::invalid_argument, fmt::format("text: cannot read '{}'", file));
  }
  return ByteText(std::move(bytes), validation_share);
}

BatchSampler::BatchSampler(std::span<const std::uint8_t> text, int context, std::uint64_t seed)
    : text_(text), context_(static_cast<std::size_t>(context)), seed_(seed) {
  if (text_.size() < context_ + 1) {
    throw Error(Code::invalid_argument,
                fmt::format("text: {} bytes are too few for a context of {}; give more or larger files", text_.size(),
                            context_));
  }
}

std::size_t BatchSampler::offset(std::uint64_t step, std::uint64_t row) const {
  return mix64(mix64(mix64(seed_) ^ step) ^ row) % (text_.size() - context_);
}

Batch BatchSampler::batch(std::uint64_t step, std::uint64_t first_row, int rows) const {
  const auto context = static_cast<std::int64_t>(context_);
  Batch batch{torch::empty({rows, context}, torch::kInt64), torch::empty({rows, context}, torch::kInt64)};
  auto* input = batch.input.data_ptr<std::int64_t>();
  auto* target = batch.target.data_ptr<std::int64_t>();
  for (int row = 0; row < rows; ++row) {
    const std::uint8_t* from = text_.data() + offset(step, first_row + static_cast<std::uint64_t>(row));
    for (std::size_t i = 0; i < context_; ++i) {
      *input++ = from[i];
      *target++ = from[i + 1];
    }
  }
  return batch;
}

}  // namespace tutti::training
