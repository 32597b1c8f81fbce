// Whose memory may stay registered: that of blocks, until their end is told.
#include "transport/shm/arena.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/pages.h"

namespace tutti::transport::arena_test {
namespace {

TEST(Arena, ABlockIsFoundByWhatLiesInIt) {
  Arena& arena = *Arena::process().take();
  const std::size_t bytes = 2 * page_bytes() + 1, whole = 3 * page_bytes();
  std::byte* const block = arena.allocate(bytes).take();
  for (const std::size_t at : {std::size_t{0}, std::size_t{1}, bytes - 1}) {
    const Blocks::Block found = arena.block_of(block + at, bytes - at);
    EXPECT_EQ(found.base, block);
    EXPECT_EQ(found.bytes, whole);
  }
  EXPECT_EQ(arena.block_of(block, whole + 1).base, nullptr);
  EXPECT_EQ(arena.block_of(block + 1, whole).base, nullptr);
  EXPECT_EQ(arena.block_of(&arena, 1).base, nullptr);
  Arena::deallocate(block);
  EXPECT_EQ(arena.block_of(block, 1).base, nullptr);
}

TEST(Arena, TheEndOfABlockIsToldBeforeItsMemoryIsAnothers) {
  Arena& arena = *Arena::process().take();
  const std::size_t bytes = 2 * page_bytes();
  std::byte* const block = arena.allocate(bytes).take();
  std::vector<std::byte*> ended, others;
  arena.watch(&ended, [&](std::byte* base) {
    ended.push_back(base);
    EXPECT_EQ(arena.block_of(base, 1).base, nullptr) << "the block is gone before its memory is";
    std::byte* const other = arena.allocate(bytes).take();
    EXPECT_NE(other, base);
    base[0] = std::byte{7};
    others.push_back(other);
  });
  Arena::deallocate(block);
  arena.unwatch(&ended);
  EXPECT_EQ(ended, std::vector<std::byte*>{block});
  for (std::byte* const other : others) Arena::deallocate(other);
  std::byte* const again = arena.allocate(bytes).take();
  EXPECT_EQ(again, block);
  EXPECT_EQ(again[0], std::byte{0}) << "it was given back before that was written";
  Arena::deallocate(again);
  EXPECT_EQ(ended.size(), 1u);
}

}  // namespace
}  // namespace tutti::transport::arena_test
