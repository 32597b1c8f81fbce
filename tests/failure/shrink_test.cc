// After a death the survivors make a smaller communicator and go on; down to one.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "tests/failure/any_call.h"
#include "tests/failure/processes.h"

namespace tutti::testing::shrink_test {
namespace {

// Sums ones: the number of ranks that took part.
int count_ranks(Communicator& comm, std::size_t elements = 1000) {
  Buffer<float> ones(elements);
  std::fill(ones.begin(), ones.end(), 1.0F);
  comm.all_reduce(ones.data(), ones.data(), elements, DataType::f32);
  for (const float x : ones) {
    if (x != ones[0]) return -1;
  }
  return static_cast<int>(ones[0]);
}

// Works, loses a rank, shrinks, as often as ranks die. Progress is the size it has last worked with, negated.
void live_on(const Place& place) {
  Communicator comm = place.join(with_timeout(30s));
  for (;;) {
    if (count_ranks(comm) != comm.size()) place.give_up("wrong sum");
    place.set_progress(100 - comm.size());
    if (comm.size() == 1) return;
    while (!place.fails([&] { count_ranks(comm, 100'000); })) {
    }
    const int before = comm.size();
    comm = comm.shrink();
    if (comm.size() >= before) place.give_up("did not shrink");
  }
}

void kill_one_after_another(const std::vector<int>& victims) {
  const int size = static_cast<int>(victims.size()) + 1;
  Processes ranks(size, live_on);
  std::vector<int> dead;
  for (const int victim : victims) {
    for (int r = 0; r < size; ++r) {
      if (std::count(dead.begin(), dead.end(), r) > 0) continue;
      ASSERT_TRUE(ranks.wait_progress(r, 100 - size + static_cast<int>(dead.size()), 30s));
    }
    ranks.signal(victim, SIGKILL);
    dead.push_back(victim);
  }
  EXPECT_TRUE(ranks.finish(30s, dead));
}

TEST(Shrink, FromTheEnd) { kill_one_after_another({3, 2, 1}); }
TEST(Shrink, RankZeroFirst) { kill_one_after_another({0, 1, 2}); }
TEST(Shrink, FromTheMiddle) { kill_one_after_another({1, 0, 3}); }

// Two die at once, and one more while the others shrink.
TEST(Shrink, DeathsMeanwhile) {
  for (int i = 0; i < setting("TRIES", 8); ++i) {
    constexpr int size = 5;
    Processes ranks(size, [](const Place& place) {
      Communicator comm = place.join(with_timeout(30s));
      place.step();
      while (!place.fails([&] { count_ranks(comm, 10'000); })) {
      }
      place.step();
      while (comm.size() > 2) {
        comm = comm.shrink();
        // The third may die before or after the new communicator is made.
        while (comm.size() > 2 && !place.fails([&] { count_ranks(comm); })) {
        }
      }
      const int count = count_ranks(comm);
      if (count != 2) {
        place.give_up("counts " + std::to_string(count) + " of " + std::to_string(comm.size()) +
                      " ranks; before: " + place.first_failure());
      }
    });
    for (int r = 0; r < size; ++r) ASSERT_TRUE(ranks.wait_progress(r, 1));
    ranks.signal(i % 5, SIGKILL);
    ranks.signal((i + 1) % 5, SIGKILL);
    const int third = (i + 3) % 5;
    ASSERT_TRUE(ranks.wait_progress(third, 2));
    const std::int64_t until = now_ns() + i * 150'000;
    while (now_ns() < until) cpu_relax();
    ranks.signal(third, SIGKILL);
    ASSERT_TRUE(ranks.finish(30s, {i % 5, (i + 1) % 5, third})) << "try " << i;
  }
}

// After an abort no rank is dead: the new communicator has all ranks.
TEST(Shrink, AfterAnAbort) {
  Processes ranks(3, [](const Place& place) {
    Communicator comm = place.join(with_timeout(30s));
    if (place.rank() == 1) comm.abort("once more");
    while (!place.fails([&] { comm.barrier(); })) {
    }
    Communicator again = comm.shrink();
    if (count_ranks(again) != 3) place.give_up("wrong sum");
  });
  EXPECT_TRUE(ranks.finish(30s));
}

// The ranks of what is left are others than the job's, and errors say both. The name stays.
TEST(Shrink, NamesTheJobsRanks) {
  for (const bool in_a_group : {false, true}) {
    Processes ranks(4, [&](const Place& place) {
      Communicator world = place.join(with_timeout(30s));
      Communicator comm = in_a_group ? world.split(0, place.rank(), "dp") : world;
      if (count_ranks(comm) != 4) place.give_up("wrong sum");
      place.step();
      while (!place.fails([&] { count_ranks(comm, 100'000); })) {
      }
      Communicator rest = comm.shrink();
      if (count_ranks(rest) != 3) place.give_up("wrong sum");
      float x = 0;
      place.fails([&] { rest.broadcast(&x, &x, 1, DataType::f32, 3); });
    });
    for (int r = 0; r < 4; ++r) ASSERT_TRUE(ranks.wait_progress(r, 1));
    ranks.signal(1, SIGKILL);
    ASSERT_TRUE(ranks.finish(30s, {1}));
    const std::string group = in_a_group ? "group 'dp'" : "a group";
    EXPECT_THAT(ranks.error(0, 1), ::testing::StartsWith(ranks.name_in(group, 0, 0) + " called broadcast"));
    EXPECT_THAT(ranks.error(3, 1), ::testing::StartsWith(ranks.name_in(group, 2, 3) + " called broadcast"));
  }
}

// What the first time left behind is not taken for the second's.
TEST(Shrink, TheSameOneTwice) {
  Processes ranks(3, [](const Place& place) {
    Communicator comm = place.join(with_timeout(30s));
    for (int i = 0; i < 20; ++i) {
      Communicator first = comm.shrink();
      Communicator second = comm.shrink();
      if (count_ranks(first) != 3 || count_ranks(second) != 3) place.give_up("wrong sum");
    }
  });
  EXPECT_TRUE(ranks.finish(30s));
}

// A rank that has closed its communicator lives, but is no survivor.
TEST(Shrink, WithoutWhoHasLeft) {
  Processes ranks(3, [](const Place& place) {
    {
      Communicator comm = place.join(with_timeout(10s));
      if (place.rank() == 2) {
        comm.barrier();
      } else {
        // Where one is still in the first barrier when the other finds rank 2 gone in the second, the first fails.
        while (!place.fails([&] { comm.barrier(); })) {
        }
        Communicator rest = comm.shrink();
        if (count_ranks(rest) != 2) place.give_up("wrong sum");
        return;
      }
    }
    place.wait_for_go();
  });
  EXPECT_TRUE(ranks.finish(30s, {2}));
  ranks.go();
  EXPECT_TRUE(ranks.finish(30s));
}

}  // namespace
}  // namespace tutti::testing::shrink_test
