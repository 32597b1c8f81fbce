#include "collectives/job/stable_hash.h"

#include <gtest/gtest.h>

#include <string>

namespace tutti::stable_hash_test {
namespace {

// What hosts tell each other must not depend on who built them: so the numbers themselves are held fast. The first is
// SipHash-2-4's of nothing, with a key of zeros, as other programs have it.
TEST(StableHash, IsTheSameEverywhere) {
  EXPECT_EQ(stable_hash(""), 0x1e924b9d737700d7u);
  EXPECT_NE(stable_hash("ring"), stable_hash("ringing"));
  EXPECT_EQ(stable_hash(std::string("ring")), stable_hash("ring"));
}

}  // namespace
}  // namespace tutti::stable_hash_test
