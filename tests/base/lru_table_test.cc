#include "base/lru_table.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace tutti {
namespace {

const int* find(LruTable<int>& table, std::uint64_t hash, int wanted) {
  return table.find(hash, [wanted](int value) { return value == wanted; });
}

TEST(LruTable, FindsWhatMatchesUnderItsHash) {
  LruTable<int> table;
  EXPECT_EQ(find(table, 0, 7), nullptr);
  const int* kept = table.insert(0, std::make_unique<int>(7));
  table.insert(~std::uint64_t{0}, std::make_unique<int>(8));
  EXPECT_EQ(find(table, 0, 7), kept);
  EXPECT_EQ(find(table, 0, 8), nullptr);
  EXPECT_EQ(*find(table, ~std::uint64_t{0}, 8), 8);
}

TEST(LruTable, TheValueNotFoundForLongestMakesRoom) {
  LruTable<int> table;
  constexpr int kPlaces = LruTable<int>::kPlaces;
  for (int i = 0; i < kPlaces; ++i) table.insert(0, std::make_unique<int>(i));
  ASSERT_NE(find(table, 0, 0), nullptr);
  table.insert(0, std::make_unique<int>(kPlaces));
  EXPECT_EQ(find(table, 0, 1), nullptr);
  std::vector<int> left;
  table.each([&](int value) { left.push_back(value); });
  EXPECT_EQ(left, (std::vector<int>{kPlaces, 0, 3, 2}));
}

}  // namespace
}  // namespace tutti
