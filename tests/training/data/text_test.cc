#include "training/data/text.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <set>

#include "tutti/tutti.hpp"

namespace tutti::training::text_test {
namespace {

std::vector<std::uint8_t> counting_bytes(std::size_t size) {
  std::vector<std::uint8_t> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::uint8_t>(i % 251);
  return bytes;
}

TEST(Text, FilesBecomeOneStreamSplitAtTheEnd) {
  const std::string base = ::testing::TempDir() + "tutti_text_" + std::to_string(::getpid());
  std::ofstream(base + "a") << "hello ";
  std::ofstream(base + "b") << "world!";
  const ByteText text = ByteText::load({base + "a", base + "b"}, 0.25);
  std::remove((base + "a").c_str());
  std::remove((base + "b").c_str());
  EXPECT_EQ(std::string(text.train().begin(), text.train().end()), "hello wor");
  EXPECT_EQ(std::string(text.validation().begin(), text.validation().end()), "ld!");
}

TEST(Text, AFileThatCannotBeReadIsNamed) {
  try {
    ByteText::load({"/no/such/file"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), "text: cannot read '/no/such/file'");
  }
}

TEST(Text, AShareThatIsNoneIsRefused) {
  for (const double share : {-0.1, 1.1, std::nan("")}) EXPECT_THROW(ByteText(counting_bytes(8), share), Error);
}

TEST(Text, TooShortATextIsRefused) {
  const std::vector<std::uint8_t> bytes(8);
  EXPECT_THROW(BatchSampler(bytes, 8, 1), Error);
  const BatchSampler shortest(bytes, 7, 1);
  EXPECT_EQ(shortest.offset(3, 4), 0u);
}

TEST(Text, TargetsAreInputsMovedByOne) {
  const std::vector<std::uint8_t> bytes = counting_bytes(1000);
  const BatchSampler sampler(bytes, 16, 7);
  const Batch batch = sampler.batch(5, 0, 4);
  EXPECT_EQ(batch.input.sizes(), (std::vector<std::int64_t>{4, 16}));
  for (int row = 0; row < 4; ++row) {
    const std::size_t offset = sampler.offset(5, static_cast<std::uint64_t>(row));
    for (int i = 0; i < 16; ++i) {
      EXPECT_EQ(batch.input[row][i].item<int>(), bytes[offset + static_cast<std::size_t>(i)]);
      EXPECT_EQ(batch.target[row][i].item<int>(), bytes[offset + static_cast<std::size_t>(i) + 1]);
    }
  }
}

TEST(Text, RanksTogetherSeeTheRowsOfOneProcess) {
  const std::vector<std::uint8_t> bytes = counting_bytes(5000);
  const BatchSampler sampler(bytes, 8, 42);
  const Batch whole = sampler.batch(9, 0, 12);
  for (int rank = 0; rank < 3; ++rank) {
    const Batch part = sampler.batch(9, static_cast<std::uint64_t>(rank) * 4, 4);
    EXPECT_TRUE(torch::equal(part.input, whole.input.slice(0, rank * 4, rank * 4 + 4)));
    EXPECT_TRUE(torch::equal(part.target, whole.target.slice(0, rank * 4, rank * 4 + 4)));
  }
}

TEST(Text, SeedStepAndRowEachChangeTheOffset) {
  const std::vector<std::uint8_t> bytes = counting_bytes(1 << 20);
  std::set<std::size_t> offsets;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const BatchSampler sampler(bytes, 8, seed);
    for (std::uint64_t step = 0; step < 10; ++step) {
      for (std::uint64_t row = 0; row < 10; ++row) offsets.insert(sampler.offset(step, row));
    }
  }
  // 1000 draws from 2^20 values: half a collision is expected; ten are a one in 10^13 event, and the draws are fixed.
  EXPECT_GT(offsets.size(), 990u);
}

}  // namespace
}  // namespace tutti::training::text_test
