// Making a communicator: a rank that never comes, that dies, or that is stopped meanwhile is named on all the others.
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <random>
#include <string>

#include "base/cpu.h"
#include "tests/failure/processes.h"

namespace {
/// This process stops once it has sent a descriptor to another.
bool stops_at_descriptors = false;
}  // namespace

/// In place of the C library's.
extern "C" ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  const ssize_t sent = syscall(SYS_sendmsg, fd, message, flags);
  if (stops_at_descriptors && message->msg_controllen > 0) std::raise(SIGSTOP);
  return sent;
}

namespace tutti::testing::creation_test {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Joins and makes one call; the failure is kept.
void join(const Place& place, std::chrono::milliseconds timeout) {
  place.step();
  place.fails([&] {
    Communicator comm = place.join(with_timeout(timeout));
    comm.barrier();
    place.wait_for_go(2);
  });
  place.step();
}

TEST(Creation, ARankThatNeverComes) {
  for (const int absent : {1, 2}) {
    Processes ranks(3, [&](const Place& place) {
      if (place.rank() != absent) join(place, 800ms);
    });
    ASSERT_TRUE(ranks.finish(30s));
    for (int r = 0; r < 3; ++r) {
      if (r == absent) continue;
      EXPECT_EQ(ranks.slot(r).failure[0].code, Code::timeout);
      EXPECT_THAT(ranks.error(r), HasSubstr("rank " + std::to_string(absent) + " of 3 has not come within 0.8 s"));
      EXPECT_EQ(ranks.error(r), ranks.error(0));
    }
  }
}

// Rank 0 makes the id and never listens.
TEST(Creation, RankZeroNeverComes) {
  Processes ranks(2, [](const Place& place) {
    if (place.rank() == 0) {
      place.fails([&] { (void)place.join(with_timeout(200ms)); });
    } else {
      place.wait_for_go();
      place.fails([&] { (void)place.join(with_timeout(500ms)); });
    }
  });
  ASSERT_TRUE(ranks.finish(30s, {1}));
  ranks.go();
  ASSERT_TRUE(ranks.finish(30s));
  EXPECT_THAT(ranks.error(0), HasSubstr("rank 1 of 2 has not come within 0.2 s"));
  EXPECT_EQ(ranks.slot(1).failure[0].code, Code::timeout);
  EXPECT_THAT(ranks.error(1), HasSubstr("rank 0 of 2 has not come within 0.5 s"));
}

// Killed at a random moment of the making: the others fail in time, or have finished and fail in their next call.
TEST(Creation, ADeathMeanwhile) {
  std::mt19937 random(new_seed());
  for (int i = 0; i < setting("TRIES", 15); ++i) {
    const int victim = static_cast<int>(random() % 3);
    SCOPED_TRACE("try " + std::to_string(i) + ": kills rank " + std::to_string(victim));
    Processes ranks(3, [](const Place& place) {
      place.step();
      place.fails([&] {
        Communicator comm = place.join(with_timeout(3s));
        for (;;) comm.barrier();
      });
    });
    ASSERT_TRUE(ranks.wait_progress(victim, 1));
    const std::int64_t until = now_ns() + static_cast<std::int64_t>(random() % 8'000'000);
    while (now_ns() < until) cpu_relax();
    ranks.signal(victim, SIGKILL);
    // Before it had come it is unknown: then only the deadline can tell. Before rank 0 has made the id, no rank
    // starts.
    if (victim == 0 && !eventually(100ms, [&] { return ranks.slot(1).failures > 0; }) && ranks.slot(1).failures == 0) {
      continue;
    }
    ASSERT_TRUE(ranks.finish(30s, {victim}));
    for (int r = 0; r < 3; ++r) {
      if (r == victim) continue;
      ASSERT_EQ(ranks.slot(r).failures, 1) << "rank " << r;
      EXPECT_THAT(ranks.slot(r).failure[0].code, AnyOf(Code::peer_died, Code::timeout)) << ranks.error(r);
      // A rank that comes after a death has ended the creation finds no server.
      EXPECT_THAT(ranks.error(r),
                  AnyOf(HasSubstr("rank " + std::to_string(victim)), HasSubstr("rank 0 of 3 has not come")));
    }
    if (HasFailure()) return;
  }
}

// Stopped at a random moment of the making, for good: the deadline names it.
TEST(Creation, AStopMeanwhile) {
  std::mt19937 random(new_seed());
  for (int i = 0; i < setting("TRIES", 4); ++i) {
    const int victim = 1 + static_cast<int>(random() % 2);
    SCOPED_TRACE("try " + std::to_string(i) + ": stops rank " + std::to_string(victim));
    Processes ranks(3, [](const Place& place) {
      place.step();
      place.fails([&] {
        Communicator comm = place.join(with_timeout(600ms));
        for (;;) comm.barrier();
      });
    });
    ASSERT_TRUE(ranks.wait_progress(victim, 1));
    const std::int64_t until = now_ns() + static_cast<std::int64_t>(random() % 8'000'000);
    while (now_ns() < until) cpu_relax();
    ranks.stop(victim);
    ASSERT_TRUE(ranks.finish(30s, {victim}));
    for (int r = 0; r < 3; ++r) {
      if (r == victim) continue;
      EXPECT_NE(ranks.slot(r).failure[0].code, Code::ok);
      EXPECT_THAT(ranks.error(r), HasSubstr("rank " + std::to_string(victim)));
    }
    ranks.signal(victim, SIGCONT);
    EXPECT_TRUE(ranks.finish(30s));
    if (HasFailure()) return;
  }
}

// Stopped when one of the two others has its memory: that one, and the one that waits for it, are not to blame.
TEST(Creation, AStopBetweenTwoDescriptors) {
  const int victim = 2;
  Processes ranks(3, [](const Place& place) {
    stops_at_descriptors = place.rank() == victim;
    place.fails([&] { (void)place.join(with_timeout(1s)); });
  });
  ASSERT_TRUE(ranks.finish(30s, {victim}));
  for (int r = 0; r < victim; ++r) {
    EXPECT_THAT(ranks.error(r), HasSubstr("rank 2")) << r;
    EXPECT_THAT(ranks.error(r), Not(HasSubstr("ranks 1, 2"))) << r;
  }
  EXPECT_THAT(ranks.error(1), HasSubstr("has not shared its memory with rank 1 within 0.875 s"));
}

}  // namespace
}  // namespace tutti::testing::creation_test
