#include "collectives/executor/host/slot_stores.h"

#include <gtest/gtest.h>

namespace tutti::executor {
namespace {

// A machine on which either way takes so long.
int copies_past_caches(SlotStores& stores, int copies, double through, double past) {
  int count = 0;
  for (int i = 0; i < copies; ++i) {
    const bool past_caches = stores.next();
    stores.took(past_caches, past_caches ? past : through);
    count += past_caches ? 1 : 0;
  }
  return count;
}

TEST(SlotStores, GoThroughTheCachesAndTryTheOtherWayNowAndThen) {
  SlotStores stores;
  constexpr int kTrials = 10;
  EXPECT_EQ(copies_past_caches(stores, kTrials * static_cast<int>(SlotStores::kTrialEvery), 1, 1.5), kTrials);
  EXPECT_FALSE(stores.past_caches());
}

TEST(SlotStores, TheReadersTripToMemoryCounts) {
  SlotStores stores;
  copies_past_caches(stores, 1000, 1.9, 1);
  EXPECT_FALSE(stores.past_caches());
  copies_past_caches(stores, 1000, 2.1, 1);
  EXPECT_TRUE(stores.past_caches());
}

TEST(SlotStores, FollowThePhasesOfAMachine) {
  SlotStores stores;
  copies_past_caches(stores, 1000, 1, 1.5);
  for (int phase = 0; phase < 3; ++phase) {
    // Each copy of the old way may raise what is known of it by three eighths, and it must come past 3: 1.375^4 > 3.
    copies_past_caches(stores, 4, 10, 1.5);
    EXPECT_TRUE(stores.past_caches());
    // A trial in 128 brings what is known nearer by three quarters, from at most 10 to below 3: two of them.
    copies_past_caches(stores, 2 * static_cast<int>(SlotStores::kTrialEvery), 1, 1.5);
    EXPECT_FALSE(stores.past_caches());
  }
}

TEST(SlotStores, OneSlowCopyChangesNothing) {
  SlotStores stores;
  copies_past_caches(stores, 1000, 1, 1);
  copies_past_caches(stores, 1, 1000, 1000);  // the thread had lost its core
  EXPECT_FALSE(stores.past_caches());
  copies_past_caches(stores, 100, 1, 1);
  EXPECT_FALSE(stores.past_caches());
}

}  // namespace
}  // namespace tutti::executor
