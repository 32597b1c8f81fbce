// SIGSTOP: the deadline names the rank that is stopped, and not one that waits for it; when it goes on, it hears the
// same sentence.
#include <gmock/gmock.h>

#include <cstddef>
#include <string>
#include <vector>

#include "tests/failure/any_call.h"
#include "tests/failure/processes.h"

namespace tutti::testing::stop_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr auto kTimeout = 700ms;

// All ranks fail with one sentence that blames `stopped` and no other rank; after SIGCONT so does `stopped`.
void expect_blamed(Processes& ranks, int size, int stopped) {
  ASSERT_TRUE(ranks.finish(30s, {stopped}));
  ranks.signal(stopped, SIGCONT);
  ASSERT_TRUE(ranks.finish(30s));
  const std::string sentence = ranks.error(stopped == 0 ? 1 : 0);
  EXPECT_THAT(sentence, StartsWith(ranks.name(stopped)));
  for (int r = 0; r < size; ++r) {
    ASSERT_GE(ranks.slot(r).failures, 1) << "rank " << r;
    EXPECT_EQ(ranks.slot(r).failure[0].code, Code::timeout);
    EXPECT_EQ(ranks.error(r), sentence) << "rank " << r;
    if (r != stopped) {
      EXPECT_THAT(sentence, Not(StartsWith(ranks.name(r))));
      EXPECT_THAT(sentence, Not(HasSubstr(", " + ranks.name(r)))) << "an innocent rank is blamed too";
    }
  }
}

// Calls of a kind, until it fails.
void repeat(const Place& place, Collective kind, std::size_t count, bool registered) {
  Communicator comm = place.join(with_timeout(kTimeout));
  AnyCall call;
  call.kind = kind;
  call.count = count;
  Field field(count * sizeof(float) * static_cast<std::size_t>(place.size()), registered);
  for (int salt = 0;; ++salt) {
    if (place.fails([&] { perform(comm, call, field, salt); })) return;
    if (const std::string wrong = check(call, field, place.rank(), place.size(), salt); !wrong.empty()) {
      place.give_up(wrong);
    }
    place.step();
  }
}

TEST(Stop, InTheMiddleOfCalls) {
  const Collective kinds[] = {Collective::all_reduce, Collective::all_gather, Collective::broadcast,
                              Collective::all_to_all, Collective::barrier};
  int number = 0;
  for (const Collective kind : kinds) {
    for (const std::size_t count : {std::size_t{4}, std::size_t{300'000}}) {
      const int size = 2 + number % 3;
      const int victim = number++ % size;
      SCOPED_TRACE(std::string(name_of(kind)) + " x " + std::to_string(count) + " on " + std::to_string(size) +
                   " ranks, stops rank " + std::to_string(victim));
      Processes ranks(size, [&](const Place& place) { repeat(place, kind, count, number % 2 == 0); });
      ASSERT_TRUE(ranks.wait_progress(victim, 20));
      ranks.stop(victim);
      expect_blamed(ranks, size, victim);
      if (HasFailure()) return;
    }
  }
}

// Rank 1 waits in its next call already, rank 2 in a send; rank 0 alone keeps them waiting.
TEST(Stop, AmongSendersAndReceivers) {
  Processes ranks(3, [](const Place& place) {
    Communicator comm = place.join(with_timeout(kTimeout));
    float x = 0;
    comm.barrier();
    place.step();
    if (place.rank() == 0) {
      place.wait_for_go();
      place.fails([&] { comm.barrier(); });
    } else if (place.rank() == 1) {
      place.fails([&] { comm.recv(&x, 1, DataType::f32, 0); });
    } else {
      place.fails([&] { comm.recv(&x, 1, DataType::f32, 0); });
    }
  });
  ASSERT_TRUE(ranks.wait_progress(0, 1));
  ranks.stop(0);
  ranks.go();
  expect_blamed(ranks, 3, 0);
}

// No rank is stopped, but rank 1 does not come: it is named, and told when it does.
TEST(Stop, ARankThatComputesTooLong) {
  Processes ranks(2, [](const Place& place) {
    Communicator comm = place.join(with_timeout(300ms));
    if (place.rank() == 1) place.wait_for_go();
    place.fails([&] { comm.barrier(); });
  });
  ASSERT_TRUE(ranks.finish(30s, {1}));
  ranks.go();
  ASSERT_TRUE(ranks.finish(30s));
  EXPECT_THAT(ranks.error(0), StartsWith(ranks.name(1) + " has not entered it; " + ranks.name(0) + " waited 0.3 s in"));
  EXPECT_EQ(ranks.error(0), ranks.error(1));
}

// Shorter than the deadline: nothing happens.
TEST(Stop, AShortStopDisturbsNoRank) {
  Processes ranks(3, [](const Place& place) {
    Communicator comm = place.join(with_timeout(30s));
    std::vector<float> data(1000, 1.0F);
    for (int i = 0; i < 2000; ++i) {
      std::vector<float> sum(data.size());
      comm.all_reduce(data.data(), sum.data(), data.size(), DataType::f32);
      if (sum.back() != 3.0F) place.give_up("wrong sum");
      place.step();
    }
  });
  for (int stops = 1; stops <= 3; ++stops) {
    ASSERT_TRUE(ranks.wait_progress(1, 200 * stops));
    ranks.stop(1);
    // Until the others have noticed: they cannot be more than two calls ahead.
    const int before = ranks.slot(1).progress;
    EXPECT_FALSE(eventually(20ms, [&] { return ranks.slot(0).progress > before + 3; }));
    ranks.signal(1, SIGCONT);
  }
  EXPECT_TRUE(ranks.finish(60s));
}

}  // namespace
}  // namespace tutti::testing::stop_test
