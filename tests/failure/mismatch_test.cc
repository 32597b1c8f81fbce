// One rank makes another call than the rest: the same sentence, naming both calls, on every rank; no hang, no wrong
// data before it, nothing written out of bounds.
#include <gmock/gmock.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/failure/any_call.h"
#include "tests/failure/processes.h"

namespace tutti::testing::mismatch_test {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kMost = 40'000;  // elements

/// Another call than `call`, different in one respect or in all.
AnyCall altered(const AnyCall& call, std::mt19937& random, int ranks) {
  for (;;) {
    AnyCall other = call;
    const AnyCall donor = random_call(random, ranks, kMost);
    switch (random() % 7) {
      case 0: other.kind = donor.kind; break;
      case 1: other.count = call.count + 1; break;
      case 2: other.count = donor.count; break;
      case 3: other.type = donor.type; break;
      case 4: other.op = donor.op; break;
      case 5: other.root = donor.root; break;
      default: other = donor; other.deterministic = random() % 2 == 0;
    }
    if (other.kind == Collective::barrier && call.kind == Collective::barrier) continue;
    const bool differs = other.kind != call.kind || other.count != call.count || other.type != call.type ||
                         (call.reduces() && other.op != call.op) || (call.rooted() && other.root != call.root) ||
                         other.deterministic != call.deterministic;
    if (differs) return other;
  }
}

/// A few good calls, then one in which `odd` makes another, then barriers until the error comes. What is wrong about
/// it, or nothing; `sentence` is the error.
std::string play(Communicator& comm, std::uint32_t seed, bool registered, std::string& sentence) {
  std::mt19937 random(seed);
  const int ranks = comm.size();
  Field field(kMost * 8 * static_cast<std::size_t>(ranks), registered);
  AnyCall good[3];
  for (AnyCall& call : good) call = random_call(random, ranks, kMost);
  const AnyCall call = random_call(random, ranks, kMost);
  const AnyCall other = altered(call, random, ranks);
  const int odd = static_cast<int>(random() % static_cast<unsigned>(ranks));
  const AnyCall& mine = comm.rank() == odd ? other : call;
  const std::string both =
      call.text() + " / " + other.text() + " on rank " + std::to_string(odd) + " of " + std::to_string(ranks) + ": ";
  try {
    for (int salt = 0; salt < 3; ++salt) {
      perform(comm, good[salt], field, salt);
      if (std::string wrong = check(good[salt], field, comm.rank(), ranks, salt); !wrong.empty()) return wrong;
      field.mark_recv();
    }
    perform(comm, mine, field, 3);
    // A rank that only sends, or gets all it needs from ranks that agree with it, gets the error in the next call.
    if (std::string wrong = check(mine, field, comm.rank(), ranks, 3); !wrong.empty()) return both + wrong;
    comm.barrier();
    return both + "rank " + std::to_string(comm.rank()) + " was told nothing";
  } catch (const Error& error) {
    sentence = error.what();
    if (error.code() != Code::mismatch) return both + "another code: " + sentence;
    const bool told = sentence.find(" called ") != std::string::npos || sentence.find(" sends ") != std::string::npos;
    if (!told) return both + "the calls are not named: " + sentence;
    if (!field.untouched_around(field.bytes())) return both + "wrote out of bounds";
  }
  try {
    comm.barrier();
    return both + "a later call went well";
  } catch (const Error& error) {
    return error.what() == sentence ? "" : both + "another sentence later: " + error.what();
  }
}

void play_on_threads(int size, int tries) {
  std::mt19937 seeds(new_seed());
  Processes one(1, [&](const Place& place) {
    for (int i = 0; i < tries; ++i) {
      const std::uint32_t seed = seeds();
      std::vector<Communicator> all = Communicator::in_process(size, with_timeout(20s));
      std::vector<std::string> sentences(all.size());
      std::vector<std::string> wrongs(all.size());
      std::vector<std::thread> threads;
      for (std::size_t r = 0; r < all.size(); ++r) {
        threads.emplace_back([&, r] {
          try {
            wrongs[r] = play(all[r], seed, seed % 2 == 0, sentences[r]);
          } catch (const std::exception& error) {
            wrongs[r] = error.what();
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
      for (std::size_t r = 0; r < all.size(); ++r) {
        const std::string where = "try " + std::to_string(i) + ", rank " + std::to_string(r) + ": ";
        if (!wrongs[r].empty()) place.give_up(where + wrongs[r]);
        if (sentences[r] != sentences[0]) place.give_up(where + sentences[r] + " / " + sentences[0]);
      }
      place.step();
    }
  });
  ASSERT_TRUE(one.finish(100s));
}

// Each try has a communicator of its own, split from one that must not notice anything.
void play_on_processes(int size, int tries, const std::vector<Processes::Setting>& environment = {}) {
  const std::uint32_t first = new_seed();
  Processes ranks(
      size,
      [&](const Place& place) {
        Communicator world = place.join(with_timeout(20s));
        std::mt19937 seeds(first);
        std::string sentences;
        for (int i = 0; i < tries; ++i) {
          const std::uint32_t seed = seeds();
          Communicator comm = world.split(0, place.rank());
          std::string sentence;
          const std::string wrong = play(comm, seed, seed % 2 == 0, sentence);
          if (!wrong.empty()) place.give_up("try " + std::to_string(i) + ": " + wrong);
          sentences += sentence + "\n";
          world.barrier();
          place.step();
        }
        place.note(sentences);
      },
      environment);
  ASSERT_TRUE(ranks.finish(100s));
  for (int r = 1; r < size; ++r) EXPECT_STREQ(ranks.slot(r).notes, ranks.slot(0).notes) << "rank " << r;
}

int tries(int otherwise) { return setting("TRIES", otherwise); }

TEST(Mismatch, TwoProcesses) { play_on_processes(2, tries(40)); }
TEST(Mismatch, ThreeProcesses) { play_on_processes(3, tries(30)); }
TEST(Mismatch, FourProcesses) { play_on_processes(4, tries(20)); }
TEST(Mismatch, TwoProcessesWithoutCrossMemory) { play_on_processes(2, tries(30), {{"TUTTI_CROSS_MEMORY", "off"}}); }
// By plans in which a rank in another call could put its data where a third rank's belongs.
TEST(Mismatch, FourProcessesThroughSlots) {
  play_on_processes(4, tries(20),
                    {{"TUTTI_CROSS_MEMORY", "off"},
                     {"TUTTI_SELECTION",
                      "all_reduce * * put_two_shot; reduce_scatter * * linear; all_gather * * ring; "
                      "broadcast * * chain; reduce * * chain; all_to_all * * pairwise; gather * * linear; "
                      "scatter * * linear"}});
}
TEST(Mismatch, TwoThreads) { play_on_threads(2, tries(40)); }
TEST(Mismatch, ThreeThreads) { play_on_threads(3, tries(30)); }
TEST(Mismatch, FourThreads) { play_on_threads(4, tries(20)); }

// Every pair of kinds, in both orders, small and large.
TEST(Mismatch, EveryPairOfKinds) {
  constexpr int size = 2;
  Processes ranks(size, [](const Place& place) {
    Communicator world = place.join(with_timeout(20s));
    for (const std::size_t count : {std::size_t{3}, std::size_t{20'000}}) {
      for (const Collective a : kKinds) {
        for (const Collective b : kKinds) {
          if (a == b) continue;
          Communicator comm = world.split(0, place.rank());
          Field field(count * size * sizeof(float), true);
          AnyCall call;
          call.kind = place.rank() == 0 ? a : b;
          call.count = count;
          std::string sentence;
          try {
            perform(comm, call, field, 0);
            comm.barrier();
            place.give_up(std::string(name_of(a)) + " and " + name_of(b) + ": no error");
          } catch (const Error& error) {
            sentence = error.what();
          }
          for (const Collective named : {a, b}) {
            if (sentence.find(std::string("called ") + name_of(named) + "(") == std::string::npos) {
              place.give_up(std::string(name_of(a)) + " and " + name_of(b) + ": " + sentence);
            }
          }
          world.barrier();
        }
      }
    }
  });
  EXPECT_TRUE(ranks.finish(100s));
}

// The sentence itself, once in full.
TEST(Mismatch, Sentence) {
  Processes ranks(2, [](const Place& place) {
    Communicator comm = place.join(with_timeout(20s));
    std::vector<float> data(400);
    comm.barrier();
    if (place.rank() == 0) place.fails([&] { comm.all_reduce(data.data(), data.data(), 128, DataType::f32); });
    if (place.rank() == 1) place.fails([&] { comm.all_gather(data.data(), data.data() + 100, 100, DataType::f32); });
  });
  ASSERT_TRUE(ranks.finish());
  EXPECT_EQ(ranks.error(0), ranks.error(1));
  EXPECT_EQ(ranks.error(0), ranks.name(0) + " called all_reduce(128 x f32, sum) as its call 2, " + ranks.name(1) +
                                " called all_gather(100 x f32) as its call 2");
}

// In a group both ranks are said: the group's and the job's. The other group does not notice.
TEST(Mismatch, InAGroupNamesTheJobsRanks) {
  for (const std::string name : {"tp", ""}) {
    Processes ranks(4, [&](const Place& place) {
      Communicator world = place.join(with_timeout(20s));
      Communicator tp = world.split(place.rank() / 2, place.rank(), name);
      std::vector<float> data(400);
      tp.barrier();
      if (place.rank() == 2) place.fails([&] { tp.all_reduce(data.data(), data.data(), 128, DataType::f32); });
      if (place.rank() == 3) place.fails([&] { tp.all_gather(data.data(), data.data() + 100, 100, DataType::f32); });
      world.barrier();
      if (place.rank() < 2) tp.barrier();
    });
    ASSERT_TRUE(ranks.finish());
    const std::string group = name.empty() ? "a group" : "group '" + name + "'";
    EXPECT_EQ(ranks.error(2), ranks.error(3));
    EXPECT_EQ(ranks.error(2), ranks.name_in(group, 0, 2) + " called all_reduce(128 x f32, sum) as its call 2, " +
                                  ranks.name_in(group, 1, 3) + " called all_gather(100 x f32) as its call 2");
  }
}

// The calls look the same, but for what was asked for.
TEST(Mismatch, OfTheAlgorithm) {
  Processes ranks(2, [](const Place& place) {
    Communicator comm = place.join(with_timeout(20s));
    std::vector<float> data(128);
    CallOptions options;
    if (place.rank() == 1) options.algorithm = "ring";
    place.fails([&] { comm.all_reduce(data.data(), data.data(), 128, DataType::f32, ReduceOp::sum, options); });
  });
  ASSERT_TRUE(ranks.finish());
  EXPECT_EQ(ranks.error(0), ranks.error(1));
  EXPECT_EQ(ranks.error(0), ranks.name(0) + " called all_reduce(128 x f32, sum) as its call 1, " + ranks.name(1) +
                                " called the same with another algorithm asked for");
}

// Small through slots, large by place.
TEST(Mismatch, SendsAndReceivesOfOtherCounts) {
  for (const std::size_t count : {std::size_t{5}, std::size_t{900'000}}) {
    Processes ranks(2, [&](const Place& place) {
      Communicator comm = place.join(with_timeout(20s));
      Field field((count + 1) * sizeof(float), false);
      if (place.rank() == 0) {
        if (!place.fails([&] { comm.send(field.send(), count + 1, DataType::f32, 1); })) {
          place.fails([&] { comm.barrier(); });
        }
      } else {
        place.fails([&] { comm.recv(field.recv(), count, DataType::f32, 0); });
        if (!field.untouched_around(0)) place.give_up("wrote part of a message that does not fit");
      }
    });
    ASSERT_TRUE(ranks.finish());
    EXPECT_EQ(ranks.slot(1).failure[0].code, Code::mismatch);
    EXPECT_EQ(ranks.error(0), ranks.error(1));
    EXPECT_THAT(ranks.error(1), HasSubstr("sends " + std::to_string(count + 1) + " x f32 to"));
    EXPECT_THAT(ranks.error(1), HasSubstr("receives " + std::to_string(count) + " x f32"));
  }
}

// Who closes its communicator while the others still call is named at once, not after a deadline.
TEST(Mismatch, AClosedCommunicator) {
  Processes ranks(3, [](const Place& place) {
    {
      Communicator comm = place.join(with_timeout(60s));
      comm.barrier();
      place.step();
      if (place.rank() != 2) {
        float x = 0;
        if (place.rank() == 0) place.fails([&] { comm.all_reduce(&x, &x, 1, DataType::f32); });
        if (place.rank() == 1) place.fails([&] { comm.recv(&x, 1, DataType::f32, 2); });
        return;
      }
      // Closes when no rank is in the barrier any longer: there it would be another failure.
      const auto all_through = [&] { return place.progress_of(0) == 1 && place.progress_of(1) == 1; };
      if (!eventually(30s, all_through)) place.give_up("alone");
    }
    place.wait_for_go();  // alive, but gone
  });
  EXPECT_TRUE(ranks.finish(20s, {2}));
  ranks.go();
  EXPECT_TRUE(ranks.finish(20s));
  EXPECT_THAT(ranks.error(0), HasSubstr(ranks.name(2) + " has closed its communicator"));
  EXPECT_EQ(ranks.error(0), ranks.error(1));
}

}  // namespace
}  // namespace tutti::testing::mismatch_test
