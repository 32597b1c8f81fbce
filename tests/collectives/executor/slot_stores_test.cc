#include "collectives/executor/host/slot_stores.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace tutti::executor::slot_stores_test {
namespace {

constexpr std::size_t kCopy = std::size_t{1} << 20;

// Copies on a machine on which a byte takes so long either way. What went past the caches, in bytes.
std::size_t copy(SlotStores& stores, std::size_t copies, std::size_t bytes, int through, int past) {
  std::size_t moved = 0;
  for (std::size_t i = 0; i < copies; ++i) {
    for (std::size_t left = bytes; left > 0;) {
      const SlotStores::Part part = stores.next(left);
      EXPECT_GT(part.bytes, 0u);
      EXPECT_LE(part.bytes, left);
      if (part.timed) stores.took(part, static_cast<std::int64_t>(part.bytes) * (part.past_caches ? past : through));
      if (part.past_caches) moved += part.bytes;
      left -= part.bytes;
    }
  }
  return moved;
}

TEST(SlotStores, GoThroughTheCachesAndTryTheOtherWayNowAndThen) {
  for (const std::size_t bytes : {SlotStores::kLeastBytes, 3 * SlotStores::kLeastBytes, kCopy, 32 * kCopy}) {
    SlotStores stores;
    const std::size_t copies = 1024 * kCopy / bytes;
    const std::size_t trials = copy(stores, copies, bytes, 10, 15) / SlotStores::kTrialBytes;
    EXPECT_FALSE(stores.past_caches());
    EXPECT_GE(trials, 1024 * kCopy / (SlotStores::kBetweenTrials + bytes + 2 * SlotStores::kTrialBytes) - 1) << bytes;
    EXPECT_LE(trials, 1024 * kCopy / SlotStores::kBetweenTrials + 1) << bytes;
  }
}

TEST(SlotStores, TheReadersTripToMemoryCounts) {
  SlotStores stores;
  copy(stores, 100, kCopy, 19, 10);
  EXPECT_FALSE(stores.past_caches());
  copy(stores, 100, kCopy, 21, 10);
  EXPECT_TRUE(stores.past_caches());
}

TEST(SlotStores, FollowThePhasesOfAMachineByTwoTrials) {
  constexpr std::size_t kTwoTrials = 2 * (SlotStores::kBetweenTrials / kCopy + 1);
  SlotStores stores;
  copy(stores, 100, kCopy, 10, 15);
  for (int phase = 0; phase < 3; ++phase) {
    copy(stores, kTwoTrials, kCopy, 100, 15);
    EXPECT_TRUE(stores.past_caches());
    copy(stores, kTwoTrials, kCopy, 10, 15);
    EXPECT_FALSE(stores.past_caches());
  }
}

TEST(SlotStores, OneSlowTrialChangesNothing) {
  SlotStores stores;
  bool slow = true;  // the thread loses its core in every other trial, where it goes through the caches
  int trials = 0;
  while (trials < 20) {
    const SlotStores::Part part = stores.next(kCopy);
    if (!part.timed) continue;
    stores.took(part, slow && !part.past_caches ? 1'000'000'000 : 10'000);
    if (!part.past_caches) {
      slow = !slow;
      ++trials;
    }
    EXPECT_FALSE(stores.past_caches());
  }
}

TEST(SlotStores, CopiesAllBytesInTrialsToo) {
  SlotStores stores;
  std::vector<unsigned char> from(3 * kCopy + 5);
  std::vector<unsigned char> one(from.size());
  std::vector<unsigned char> two(from.size());
  for (std::size_t copies = 0; copies < 12; ++copies) {
    for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i * 7 + i / 256 + copies);
    void* to[] = {one.data(), from.data(), two.data()};
    stores.copy(to, from.data(), from.size() - copies);
    ASSERT_TRUE(std::equal(one.begin(), one.end() - static_cast<std::ptrdiff_t>(copies), from.begin()));
    ASSERT_TRUE(std::equal(two.begin(), two.end() - static_cast<std::ptrdiff_t>(copies), from.begin()));
  }
}

}  // namespace
}  // namespace tutti::executor::slot_stores_test
