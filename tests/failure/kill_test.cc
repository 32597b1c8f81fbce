// kill -9 at a random point of a random collective: the survivors know it within two seconds, in the same words.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "tests/failure/any_call.h"
#include "tests/failure/processes.h"

namespace tutti::testing::kill_test {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kMost = 60'000;  // elements

// Expects every survivor's two errors to be the same sentence, in time, about one of the victims.
void expect_peer_died(const Processes& ranks, int size, const std::vector<int>& victims, std::int64_t killed_ns) {
  std::string sentence;
  for (int r = 0; r < size; ++r) {
    if (std::count(victims.begin(), victims.end(), r) > 0) continue;
    SCOPED_TRACE("rank " + std::to_string(r));
    ASSERT_EQ(ranks.slot(r).failures, 2);
    for (const Slot::Failure& failure : {ranks.slot(r).failure[0], ranks.slot(r).failure[1]}) {
      EXPECT_EQ(failure.code, Code::peer_died) << failure.text;
      EXPECT_LT(static_cast<double>(failure.at_ns - killed_ns) * 1e-9, kBoundSeconds);
      if (sentence.empty()) sentence = failure.text;
      EXPECT_EQ(failure.text, sentence);
    }
  }
  bool named = false;
  for (const int victim : victims) named |= sentence.find(ranks.name(victim)) != std::string::npos;
  EXPECT_TRUE(named) << sentence;
  EXPECT_THAT(sentence, HasSubstr("call")) << "the call is not named";
}

void kill_at_random(int size, int victims_wanted, int tries) {
  std::mt19937 random(new_seed());
  for (int i = 0; i < tries; ++i) {
    const std::uint32_t seed = random();
    const bool registered = random() % 2 == 0;
    std::vector<int> all(static_cast<std::size_t>(size));
    for (int r = 0; r < size; ++r) all[static_cast<std::size_t>(r)] = r;
    std::shuffle(all.begin(), all.end(), random);
    const std::vector<int> victims(all.begin(), all.begin() + victims_wanted);
    const int after = 1 + static_cast<int>(random() % 50);
    SCOPED_TRACE("try " + std::to_string(i) + ": kills rank " + std::to_string(victims[0]));
    Processes ranks(size, [&](const Place& place) {
      call_until_failure(place, place.join(with_timeout(60s)), seed, kMost, registered);
    });
    ASSERT_TRUE(ranks.wait_progress(victims[0], after)) << ranks.output(victims[0]);
    // Somewhere inside whatever it does next.
    const std::int64_t wait_until = now_ns() + static_cast<std::int64_t>(random() % 300'000);
    while (now_ns() < wait_until) cpu_relax();
    std::int64_t killed_ns = 0;
    for (const int victim : victims) killed_ns = ranks.signal(victim, SIGKILL);
    ASSERT_TRUE(ranks.finish(30s, victims));
    expect_peer_died(ranks, size, victims, killed_ns);
    if (::testing::Test::HasFailure()) return;
  }
}

int tries(int otherwise) { return setting("TRIES", otherwise); }

TEST(Kill, OneOfTwo) { kill_at_random(2, 1, tries(6)); }
TEST(Kill, OneOfThree) { kill_at_random(3, 1, tries(6)); }
TEST(Kill, OneOfFour) { kill_at_random(4, 1, tries(4)); }
TEST(Kill, TwoOfFourAtOnce) { kill_at_random(4, 2, tries(3)); }
TEST(Kill, MoreRanksThanCores) { kill_at_random(12, 3, tries(1)); }

// Rank 0 is the bootstrap server, and its memory holds the failure that all report.
TEST(Kill, RankZero) {
  for (int i = 0; i < tries(3); ++i) {
    const auto seed = static_cast<std::uint32_t>(i);
    Processes ranks(
        3, [&](const Place& place) { call_until_failure(place, place.join(with_timeout(60s)), seed, kMost, true); });
    ASSERT_TRUE(ranks.wait_progress(0, 20 + i));
    const std::int64_t killed_ns = ranks.signal(0, SIGKILL);
    ASSERT_TRUE(ranks.finish(30s, {0}));
    expect_peer_died(ranks, 3, {0}, killed_ns);
  }
}

// The sentence says where the dead rank was: here in no call, after its second.
TEST(Kill, NamesTheCall) {
  Processes ranks(2, [](const Place& place) {
    Communicator comm = place.join(with_timeout(60s));
    float x = 1;
    comm.barrier();
    comm.all_reduce(&x, &x, 1, DataType::f32);
    place.step();
    if (place.rank() == 1) place.wait_for_go();  // until killed
    place.fails([&] { comm.barrier(); });
  });
  for (int r = 0; r < 2; ++r) ASSERT_TRUE(ranks.wait_progress(r, 1));
  ranks.signal(1, SIGKILL);
  ASSERT_TRUE(ranks.finish(30s, {1}));
  EXPECT_THAT(ranks.error(0), HasSubstr(ranks.name(1) + " died"));
  EXPECT_THAT(ranks.error(0), HasSubstr("all_reduce(1 x f32, sum)"));
  EXPECT_THAT(ranks.error(0), HasSubstr("call 2"));
}

// A rank that computes while a peer dies gets the error in its next call, also in a send or receive.
TEST(Kill, SendersAndReceivers) {
  for (const std::size_t count : {std::size_t{10}, std::size_t{3'000'000}}) {
    Processes ranks(3, [&](const Place& place) {
      Communicator comm = place.join(with_timeout(60s));
      Buffer<float> data(count);
      comm.barrier();
      place.step();
      if (place.rank() == 0) place.fails([&] { comm.recv(data.data(), count, DataType::f32, 2); });
      if (place.rank() == 1) {
        place.fails([&] {
          for (;;) comm.send(data.data(), count, DataType::f32, 2);
        });
      }
      if (place.rank() == 2) place.wait_for_go();
      place.fails([&] { comm.barrier(); });
    });
    for (int r = 0; r < 3; ++r) ASSERT_TRUE(ranks.wait_progress(r, 1));
    const std::int64_t killed_ns = ranks.signal(2, SIGKILL);
    ASSERT_TRUE(ranks.finish(30s, {2}));
    expect_peer_died(ranks, 3, {2}, killed_ns);
  }
}

TEST(Kill, ReceiversFromAnySource) {
  for (const bool background : {false, true}) {
    Processes ranks(3, [background](const Place& place) {
      Communicator comm = place.join(with_timeout(60s));
      std::vector<float> data(1'000'000);
      float x = 0;
      comm.barrier();
      place.step();
      if (place.rank() == 2) place.wait_for_go();
      place.fails([&] {
        if (background) {
          Work sent = comm.send_async(data.data(), data.size(), DataType::f32, 2, 4);
          comm.recv_async(&x, 1, DataType::f32, kAnySource, 4).wait();
        }
        comm.recv(&x, 1, DataType::f32, kAnySource, 4);
      });
    });
    for (int r = 0; r < 3; ++r) ASSERT_TRUE(ranks.wait_progress(r, 1));
    const std::int64_t killed_ns = ranks.signal(2, SIGKILL);
    ASSERT_TRUE(ranks.finish(30s, {2}));
    for (const int r : {0, 1}) {
      ASSERT_EQ(ranks.slot(r).failures, 1);
      EXPECT_EQ(ranks.slot(r).failure[0].code, Code::peer_died) << ranks.error(r);
      EXPECT_THAT(ranks.error(r), HasSubstr(ranks.name(2) + " died"));
      EXPECT_LT(static_cast<double>(ranks.slot(r).failure[0].at_ns - killed_ns) * 1e-9, kBoundSeconds);
    }
  }
}

// An orderly end is no death: the others may still be in the last call when the first is gone.
TEST(Kill, AnOrderlyEndIsNone) {
  Processes ranks(4, [](const Place& place) {
    Communicator comm = place.join(with_timeout(60s));
    for (int i = 0; i < 200; ++i) comm.barrier();
  });
  EXPECT_TRUE(ranks.finish(60s));
}

}  // namespace
}  // namespace tutti::testing::kill_test
