#include "training/hash.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tutti::training::hash_test {
namespace {

std::uint64_t hash(const std::string& text) { return ByteHash::of(text.data(), text.size()); }

TEST(Hash, GivesThePublishedValuesOfXxh64) {
  EXPECT_EQ(hash(""), 0xEF46DB3751D8E999u);
  EXPECT_EQ(hash("a"), 0xD24EC4F1A98C6E5Bu);
  EXPECT_EQ(hash("abc"), 0x44BC2CF5AD770999u);
  // Longer than the 32 bytes of a stripe.
  EXPECT_EQ(hash("Call me Ishmael. Some years ago--never mind how long precisely-"), 0x02A2E85470D6FD96u);
}

TEST(Hash, SeesEveryByteAtEveryLength) {
  for (std::size_t size = 1; size < 100; ++size) {
    std::vector<unsigned char> bytes(size, 7);
    const std::uint64_t before = ByteHash::of(bytes.data(), size);
    for (std::size_t i = 0; i < size; ++i) {
      bytes[i] ^= 1;
      EXPECT_NE(ByteHash::of(bytes.data(), size), before) << size << " " << i;
      bytes[i] ^= 1;
    }
  }
}

}  // namespace
}  // namespace tutti::training::hash_test
