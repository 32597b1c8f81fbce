#include "base/backoff.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "base/clock.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using Lengths = std::vector<Backoff::Duration>;

Lengths next_of(Backoff& backoff, int count) {
  Lengths lengths;
  for (int i = 0; i < count; ++i) lengths.push_back(backoff.next());
  return lengths;
}

TEST(Backoff, ConstantLength) {
  Backoff backoff(50us);
  EXPECT_EQ(next_of(backoff, 3), (Lengths{50us, 50us, 50us}));
}

TEST(Backoff, DoublesUpToTheLongest) {
  Backoff backoff(20us, 100us);
  EXPECT_EQ(next_of(backoff, 5), (Lengths{20us, 40us, 80us, 100us, 100us}));
}

TEST(Backoff, ResetBeginsAgain) {
  Backoff backoff(1ms, 8ms);
  next_of(backoff, 4);
  backoff.reset();
  EXPECT_EQ(next_of(backoff, 2), (Lengths{1ms, 2ms}));
}

TEST(Backoff, SleepsAtLeastTheLengthAndDoubles) {
  Backoff backoff(2ms, 4ms);
  const std::int64_t since = now_ns();
  backoff.sleep();
  EXPECT_GE(now_ns() - since, 2'000'000);
  EXPECT_EQ(backoff.next(), 4ms);
}

TEST(Backoff, ProportionalPause) {
  EXPECT_EQ(proportional_pause(19us, 20us, 1ms), 0us);
  EXPECT_EQ(proportional_pause(160us, 20us, 1ms), 10us);
  EXPECT_EQ(proportional_pause(1s, 20us, 1ms), 1ms);
  yield_or_sleep(0us);
  const std::int64_t since = now_ns();
  yield_or_sleep(1ms);
  EXPECT_GE(now_ns() - since, 1'000'000);
}

}  // namespace
}  // namespace tutti
