// Whose memory may stay registered: that of blocks, until their end is told.
#include "transport/shm/arena.h"

#include <gtest/gtest.h>

#include <vector>

namespace tutti::transport::arena_test {
namespace {

TEST(Arena, ABlockIsFoundByWhatLiesInIt) {
  Arena& arena = *Arena::process().take();
  constexpr std::size_t kBytes = 10'000, kWhole = 12'288;  // of pages
  std::byte* const block = arena.allocate(kBytes).take();
  for (const std::size_t at : {std::size_t{0}, std::size_t{1}, kBytes - 1}) {
    const Blocks::Block found = arena.block_of(block + at, kBytes - at);
    EXPECT_EQ(found.base, block);
    EXPECT_EQ(found.bytes, kWhole);
  }
  EXPECT_EQ(arena.block_of(block, kWhole + 1).base, nullptr);
  EXPECT_EQ(arena.block_of(block + 1, kWhole).base, nullptr);
  EXPECT_EQ(arena.block_of(&arena, 1).base, nullptr);
  Arena::deallocate(block);
  EXPECT_EQ(arena.block_of(block, 1).base, nullptr);
}

TEST(Arena, TheEndOfABlockIsToldBeforeItsMemoryIsAnothers) {
  Arena& arena = *Arena::process().take();
  constexpr std::size_t kBytes = 8192;
  std::byte* const block = arena.allocate(kBytes).take();
  std::vector<std::byte*> ended, others;
  arena.watch(&ended, [&](std::byte* base) {
    ended.push_back(base);
    EXPECT_EQ(arena.block_of(base, 1).base, nullptr) << "nobody may take it for a block that stays";
    std::byte* const other = arena.allocate(kBytes).take();
    EXPECT_NE(other, base);
    base[0] = std::byte{7};
    others.push_back(other);
  });
  Arena::deallocate(block);
  arena.unwatch(&ended);
  EXPECT_EQ(ended, std::vector<std::byte*>{block});
  for (std::byte* const other : others) Arena::deallocate(other);
  std::byte* const again = arena.allocate(kBytes).take();
  EXPECT_EQ(again, block);
  EXPECT_EQ(again[0], std::byte{0}) << "it was given back before that was written";
  Arena::deallocate(again);
  EXPECT_EQ(ended.size(), 1u);
}

}  // namespace
}  // namespace tutti::transport::arena_test
