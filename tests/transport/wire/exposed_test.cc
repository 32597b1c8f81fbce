// Memory that peers write into: nothing beside it, and nothing by an old number.
#include "transport/wire/exposed.h"

#include <gtest/gtest.h>

#include <array>
#include <set>

namespace tutti::transport::exposed_test {
namespace {

std::array<std::byte, 256> memory;

TEST(Exposed, HasPlacesWithinAlone) {
  ExposedMemory exposed;
  std::byte* const base = memory.data();
  const std::uint32_t number = exposed.add(base, 100);
  EXPECT_EQ(exposed.place(number, 0, 100), base);
  EXPECT_EQ(exposed.place(number, 100, 0), base + 100);
  EXPECT_EQ(exposed.place(number, 99, 1), base + 99);
  EXPECT_EQ(exposed.place(number, 99, 2), nullptr);
  EXPECT_EQ(exposed.place(number, 101, 0), nullptr);
  EXPECT_EQ(exposed.place(number, UINT64_MAX, 1), nullptr);
  EXPECT_EQ(exposed.place(number, 1, UINT64_MAX), nullptr);
  EXPECT_EQ(exposed.place(number + 1, 0, 1), nullptr);
  EXPECT_EQ(exposed.place(UINT32_MAX, 0, 1), nullptr);
}

TEST(Exposed, NumbersDoNotComeAgain) {
  ExposedMemory exposed;
  std::byte* const base = memory.data();
  const std::uint32_t stays = exposed.add(base, 16);
  std::set<std::uint32_t> numbers{stays};
  for (int i = 0; i < 1000; ++i) {
    int registration = 0;
    const std::uint32_t number = exposed.add(base + 16, 16, &registration);
    EXPECT_TRUE(numbers.insert(number).second) << number;
    const Exposed removed = exposed.remove(base + 16);
    EXPECT_EQ(removed.number, number);
    EXPECT_EQ(removed.registration, &registration);
    for (const std::uint32_t old : numbers) EXPECT_EQ(exposed.place(old, 0, 16), old == stays ? base : nullptr);
  }
  EXPECT_EQ(exposed.remove(base + 16).base, nullptr);
  EXPECT_EQ(exposed.all().size(), 2u);  // it takes no more than there were at once
}

}  // namespace
}  // namespace tutti::transport::exposed_test
