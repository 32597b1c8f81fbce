#include "training/data/tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "tutti/tutti.hpp"

namespace tutti::training {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

constexpr std::size_t kHeaderInts = 256;
constexpr std::size_t kHeaderBytes = kHeaderInts * sizeof(std::int32_t);

struct TokenFileKind {
  std::int32_t magic;
  std::int32_t version;
  int width;  // bytes per token
};
constexpr TokenFileKind kKinds[] = {{20240520, 1, 2}, {20240801, 7, 4}};

template <class T>
void copy_tokens(const std::uint8_t* from, std::span<std::int64_t> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    T token;
    std::memcpy(&token, from + i * sizeof(T), sizeof(T));
    out[i] = token;
  }
}

template <class T>
void write_as(const TokenFileKind& kind, const std::string& path, std::span<const T> tokens) {
  if (tokens.empty() || tokens.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    throw Error(Code::invalid_argument,
                fmt::format("tokens: '{}': a file holds 1 to 2^31 - 1 tokens, not {}", path, tokens.size()));
  }
  std::array<std::int32_t, kHeaderInts> header = {kind.magic, kind.version, static_cast<std::int32_t>(tokens.size())};
  write_file("tokens", path, {std::as_bytes(std::span(header)), std::as_bytes(tokens)});
}

}  // namespace

TokenFiles::TokenFiles(const std::vector<std::string>& paths) {
  if (paths.empty()) throw Error(Code::invalid_argument, "tokens: no file given");
  for (const std::string& path : paths) {
    MappedFile mapping("tokens", path);
    const std::span<const std::uint8_t> bytes = mapping.bytes();
    if (bytes.size() < kHeaderBytes) {
      mapping.fail(fmt::format("has {} bytes, fewer than the {} of the header", bytes.size(), kHeaderBytes));
    }
    std::int32_t header[3];
    std::memcpy(header, bytes.data(), sizeof header);
    const auto* kind = std::find_if(std::begin(kKinds), std::end(kKinds),
                                    [&](const TokenFileKind& k) { return k.magic == header[0]; });
    if (kind == std::end(kKinds)) {
      mapping.fail(
          fmt::format("begins with {}; a file of tokens begins with 20240520 (u16) or 20240801 (u32)", header[0]));
    }
    if (header[1] != kind->version) {
      mapping.fail(fmt::format("is of version {}; with magic {} only version {} is known", header[1], kind->magic,
                               kind->version));
    }
    if (header[2] < 1) mapping.fail(fmt::format("says that it holds {} tokens", header[2]));
    const auto count = static_cast<std::uint64_t>(header[2]);
    const std::uint64_t expected = kHeaderBytes + count * static_cast<std::uint64_t>(kind->width);
    if (bytes.size() != expected) {
      mapping.fail(
          fmt::format("has {} bytes; its header says {} tokens, which make {} bytes", bytes.size(), count, expected));
    }
    if (width_ != 0 && width_ != kind->width) {
      mapping.fail(fmt::format("holds tokens of {} bytes, '{}' of {}", kind->width, files_[0].mapping.path(), width_));
    }
    width_ = kind->width;
    files_.push_back({std::move(mapping), count});
  }
}

std::uint64_t TokenFiles::total() const {
  std::uint64_t total = 0;
  for (const File& file : files_) total += file.count;
  return total;
}

void TokenFiles::read(std::size_t file, std::uint64_t first, std::span<std::int64_t> out) const {
  const std::uint8_t* from =
      files_[file].mapping.bytes().data() + kHeaderBytes + first * static_cast<std::uint64_t>(width_);
  width_ == 2 ? copy_tokens<std::uint16_t>(from, out) : copy_tokens<std::uint32_t>(from, out);
}

TokenRows::TokenRows(const TokenFiles& files, int ranks, int rows, int context, std::int64_t vocabulary)
    : files_(files), ranks_(ranks), rows_(rows), context_(context), vocabulary_(vocabulary), first_step_{0} {
  if (ranks < 1 || rows < 1 || context < 1) {
    throw Error(Code::invalid_argument,
                fmt::format("TokenRows: {} ranks, {} rows, context {}; each must be at least 1", ranks, rows, context));
  }
  for (std::size_t file = 0; file < files.size(); ++file) {
    const std::uint64_t steps = (files.count(file) - 1) / static_cast<std::uint64_t>(ranks) /
                                static_cast<std::uint64_t>(rows) / static_cast<std::uint64_t>(context);
    if (steps == 0) {
      throw Error(Code::invalid_argument,
                  fmt::format("TokenRows: '{}': {} tokens are too few; one step needs {} ranks * {} rows * {} + 1",
                              files.path(file), files.count(file), ranks, rows, context));
    }
    first_step_.push_back(first_step_.back() + steps);
  }
}

Batch TokenRows::batch(std::uint64_t step, int rank) const {
  if (rank < 0 || rank >= ranks_) {
    throw Error(Code::invalid_argument, fmt::format("TokenRows: batch: rank {} of {} ranks is no rank", rank, ranks_));
  }
  step %= steps_per_pass();
  const auto after = std::upper_bound(first_step_.begin(), first_step_.end(), step);
  const auto file = static_cast<std::size_t>(after - first_step_.begin()) - 1;
  const auto of_rank = static_cast<std::uint64_t>(rows_) * static_cast<std::uint64_t>(context_);
  const std::uint64_t place =
      (step - first_step_[file]) * static_cast<std::uint64_t>(ranks_) + static_cast<std::uint64_t>(rank);

  std::vector<std::int64_t> tokens(of_rank + 1);
  files_.read(file, place * of_rank, tokens);
  if (vocabulary_ > 0) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] < vocabulary_) continue;
      throw Error(Code::invalid_argument,
                  fmt::format("rank {}: TokenRows: '{}': token {} is {}; the vocabulary has {}", rank,
                              files_.path(file), place * of_rank + i, tokens[i], vocabulary_));
    }
  }
  const auto rows = [&](std::int64_t* from) {
    return torch::from_blob(from, {rows_, context_}, torch::kInt64).clone();
  };
  return {rows(tokens.data()), rows(tokens.data() + 1)};
}

void write_tokens(const std::string& path, std::span<const std::uint16_t> tokens) { write_as(kKinds[0], path, tokens); }
void write_tokens(const std::string& path, std::span<const std::uint32_t> tokens) { write_as(kKinds[1], path, tokens); }

}  // namespace tutti::training
