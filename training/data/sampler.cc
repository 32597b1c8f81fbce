#include "training/data/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <string>

#include "base/even_share.h"
#include "training/data/random.h"
#include "tutti/tutti.hpp"

namespace tutti::training {
namespace {

constexpr std::uint64_t kMostSamples = std::uint64_t{1} << 62;
// Of the least mixed domain, 8 values, two neighbours then go to each pair of places with a probability that is within
// 0.2 % of equal for all (computed over ideal round functions; 2 % with 16 rounds, 30 % with 8).
constexpr std::uint64_t kRounds = 24;

[[noreturn]] void fail(std::uint64_t rank, const std::string& what) {
  throw Error(Code::invalid_argument, fmt::format("rank {}: DistributedSampler: {}", rank, what));
}

}  // namespace

std::uint64_t shuffled(std::uint64_t index, std::uint64_t size, std::uint64_t key) {
  // The value's bits are two halves, one bit apart at most; each round changes one by a function of the other.
  const int bits = std::bit_width(size - 1), high_bits = bits / 2, low_bits = bits - high_bits;
  const std::uint64_t high_mask = (std::uint64_t{1} << high_bits) - 1, low_mask = (std::uint64_t{1} << low_bits) - 1;
  do {  // the domain is less than twice `size`: fewer than two turns on average
    std::uint64_t high = index >> low_bits, low = index & low_mask;
    for (std::uint64_t round = 0; round < kRounds; round += 2) {
      low ^= mix64(mix64(key + round) ^ high) & low_mask;
      high ^= mix64(mix64(key + round + 1) ^ low) & high_mask;
    }
    index = high << low_bits | low;
  } while (index >= size);
  return index;
}

DistributedSampler::DistributedSampler(std::uint64_t samples, int rank, int ranks, const SamplerOptions& options)
    : samples_(samples),
      rank_(static_cast<std::uint64_t>(rank)),
      ranks_(static_cast<std::uint64_t>(ranks)),
      options_(options) {
  if (ranks < 1 || rank < 0 || rank >= ranks) {
    throw Error(Code::invalid_argument, fmt::format("DistributedSampler: rank {} of {} ranks is no rank", rank, ranks));
  }
  if (samples_ == 0 || samples_ > kMostSamples) fail(rank_, fmt::format("{} samples; 1 to 2^62 can be used", samples_));
}

void DistributedSampler::set_epoch(std::uint64_t epoch) {
  if (!is_restored_ || epoch != epoch_) position_ = 0;
  is_restored_ = false;
  epoch_ = epoch;
}

std::optional<SamplerStep> DistributedSampler::next(std::size_t rows) {
  std::optional<SamplerStep> step = peek(0, rows);
  is_restored_ = false;
  position_ = position_after(1, rows);
  return step;
}

std::optional<SamplerStep> DistributedSampler::peek(std::uint64_t ahead, std::size_t rows) const {
  check_rows(rows);
  const std::uint64_t begin = position_after(ahead, rows);
  std::uint64_t left = std::min(samples_ - begin, step_size(rows));
  if (options_.end == EpochEnd::drop) left -= left % ranks_;
  if (left == 0) return std::nullopt;

  const bool pad = options_.end == EpochEnd::pad;
  const std::uint64_t given = pad ? round_up(left, ranks_) : left;
  SamplerStep step;
  step.total = left;
  for (std::uint64_t rank = 0; rank < ranks_; ++rank) {
    const Share share = even_share(given, ranks_, rank);
    step.counts.push_back(std::min<std::uint64_t>(share.size, left - std::min<std::uint64_t>(left, share.offset)));
    if (rank != rank_) continue;
    for (std::uint64_t i = 0; i < share.size; ++i) {
      const std::uint64_t place = (begin + share.offset + i) % samples_;
      step.indices.push_back(static_cast<std::int64_t>(sample_at(place)));
    }
  }
  return step;
}

std::uint64_t DistributedSampler::steps(std::size_t rows) const {
  check_rows(rows);
  std::uint64_t left = samples_ - position_;
  if (options_.end == EpochEnd::drop) left -= left % ranks_;
  const std::uint64_t size = step_size(rows);
  return left / size + (left % size != 0 ? 1 : 0);
}

SamplerState DistributedSampler::state_after(std::uint64_t steps, std::size_t rows) const {
  check_rows(rows);
  return {samples_, options_.seed, options_.shuffle, epoch_, position_after(steps, rows), static_cast<int>(ranks_)};
}

void DistributedSampler::restore(const SamplerState& state) {
  if (state.samples != samples_) {
    fail(rank_,
         fmt::format("restore: the state is of a data set with {} samples, this one has {}", state.samples, samples_));
  }
  if (state.position > samples_) {
    fail(rank_, fmt::format("restore: position {} is past the {} samples", state.position, samples_));
  }
  options_.seed = state.seed;
  options_.shuffle = state.shuffle;
  epoch_ = state.epoch;
  position_ = state.position;
  is_restored_ = true;
}

std::uint64_t DistributedSampler::position_after(std::uint64_t steps, std::size_t rows) const {
  const std::uint64_t left = samples_ - position_, size = step_size(rows);
  if (steps == 0) return position_;
  const std::uint64_t position = steps > left / size ? samples_ : position_ + steps * size;
  // What is dropped has been dealt with: otherwise fewer ranks that go on from here would find an epoch not ended.
  const bool dropped = options_.end == EpochEnd::drop && samples_ - position < ranks_;
  return dropped ? samples_ : position;
}

std::uint64_t DistributedSampler::sample_at(std::uint64_t place) const {
  return options_.shuffle ? shuffled(place, samples_, mix64(mix64(options_.seed) ^ epoch_)) : place;
}

/// Returns the rows of all ranks. More than there are samples is as good as infinite, and does not overflow.
std::uint64_t DistributedSampler::step_size(std::size_t rows) const {
  return rows > samples_ / ranks_ ? samples_ + ranks_ : rows * ranks_;
}

void DistributedSampler::check_rows(std::size_t rows) const {
  if (rows == 0) fail(rank_, "rows is 0; a step needs at least one row for each rank");
}

}  // namespace tutti::training
