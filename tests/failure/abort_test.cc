// abort() from any one rank ends every pending and future call of all ranks within two seconds, in the same words.
#include <gmock/gmock.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <random>
#include <thread>
#include <vector>

#include "base/cpu.h"
#include "tests/failure/any_call.h"
#include "tests/failure/processes.h"

namespace tutti::testing::abort_test {
namespace {

using ::testing::HasSubstr;

double seconds_since(std::int64_t ns) { return static_cast<double>(now_ns() - ns) * 1e-9; }

TEST(Abort, ByEachRankOfProcesses) {
  constexpr int size = 3;
  for (int aborter = 0; aborter < size; ++aborter) {
    Processes ranks(size, [&](const Place& place) {
      Communicator comm = place.join(with_timeout(60s));
      comm.barrier();
      place.step();
      if (place.rank() == aborter) {
        place.wait_for_go();
        const std::int64_t before = now_ns();
        comm.abort("out of patience");
        if (seconds_since(before) > kBoundSeconds) place.give_up("abort took too long");
      } else if (place.rank() == (aborter + 1) % size) {
        place.wait_for_go(2);  // computes meanwhile, and calls when it is over
      }
      place.fails([&] { comm.barrier(); });
      place.fails([&] { comm.barrier(); });
      place.step();
    });
    for (int r = 0; r < size; ++r) ASSERT_TRUE(ranks.wait_progress(r, 1));
    ranks.go();
    const std::int64_t began = now_ns();
    ASSERT_TRUE(ranks.wait_progress(aborter, 2));
    ASSERT_TRUE(ranks.wait_progress((aborter + 2) % size, 2));
    ranks.go(2);
    ASSERT_TRUE(ranks.finish(30s));
    for (int r = 0; r < size; ++r) {
      for (const Slot::Failure& failure : {ranks.slot(r).failure[0], ranks.slot(r).failure[1]}) {
        EXPECT_EQ(failure.code, Code::aborted);
        EXPECT_EQ(failure.text, ranks.name(aborter) + " aborted the communicator: out of patience");
        EXPECT_LT(static_cast<double>(failure.at_ns - began) * 1e-9, kBoundSeconds);
      }
    }
  }
}

// The first failure holds: a second abort does not change the sentence.
TEST(Abort, TheFirstHolds) {
  std::vector<Communicator> ranks = Communicator::in_process(2);
  ranks[1].abort("first");
  ranks[0].abort("second");
  for (Communicator& comm : ranks) {
    try {
      comm.barrier();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 1 (thread of pid"));
      EXPECT_THAT(error.what(), HasSubstr("aborted the communicator: first"));
    }
  }
}

// From another thread, while this rank's call waits for a rank that never comes.
TEST(Abort, FromAnotherThread) {
  std::vector<Communicator> ranks = Communicator::in_process(2, with_timeout(60s));
  std::atomic<bool> calling{false};
  Code code = Code::ok;
  std::thread caller([&] {
    calling = true;
    try {
      ranks[0].barrier();
    } catch (const Error& error) {
      code = error.code();
    }
  });
  ASSERT_TRUE(eventually(10s, [&] { return calling.load(); }));
  const std::int64_t began = now_ns();
  ranks[0].abort("by its other thread");
  caller.join();
  EXPECT_LT(seconds_since(began), kBoundSeconds);
  EXPECT_EQ(code, Code::aborted);
}

// What is under way and what is still queued; wait() throws, and test() says done.
TEST(Abort, AsyncWorks) {
  std::vector<Communicator> ranks = Communicator::in_process(2, with_timeout(60s));
  std::vector<float> data(1000);
  std::vector<Work> works;
  for (int i = 0; i < 5; ++i) {
    works.push_back(ranks[0].all_reduce_async(data.data(), data.data(), data.size(), DataType::f32));
  }
  EXPECT_FALSE(works[0].test());
  const std::int64_t began = now_ns();
  ranks[1].abort("no more");
  for (Work& work : works) {
    EXPECT_THROW(work.wait(), Error);
    EXPECT_TRUE(work.test());
    EXPECT_EQ(work.status(), Code::aborted);
  }
  EXPECT_LT(seconds_since(began), kBoundSeconds);
}

TEST(Abort, SendersAndReceivers) {
  std::vector<Communicator> ranks = Communicator::in_process(3, with_timeout(60s));
  std::vector<float> large(1'000'000);
  std::atomic<int> aborted{0};
  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    try {
      ranks[0].send(large.data(), large.size(), DataType::f32, 2);
    } catch (const Error& error) {
      aborted += error.code() == Code::aborted ? 1 : 0;
    }
  });
  threads.emplace_back([&] {
    float x = 0;
    try {
      ranks[1].recv(&x, 1, DataType::f32, 2);
    } catch (const Error& error) {
      aborted += error.code() == Code::aborted ? 1 : 0;
    }
  });
  ranks[2].abort("neither receives nor sends");
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(aborted, 2);
}

// A caller frees its buffers when its call has failed: no peer may touch them any longer, however large the calls are
// that the others are in. (A stale access would end the process, since the memory is unmapped.)
TEST(Abort, BuffersMayBeFreedAfterwards) {
  constexpr std::size_t kCount = 1'000'000;
  constexpr std::size_t kBytes = kCount * sizeof(float);
  std::mt19937 random(new_seed());
  for (int i = 0; i < setting("TRIES", 40); ++i) {
    constexpr int size = 3;
    std::vector<Communicator> ranks = Communicator::in_process(size, with_timeout(60s));
    std::atomic<int> calls{0};
    std::vector<std::thread> threads;
    for (int r = 0; r < size; ++r) {
      threads.emplace_back([&, r] {
        Communicator& comm = ranks[static_cast<std::size_t>(r)];
        try {
          for (;;) {
            auto* memory = static_cast<float*>(
                mmap(nullptr, 2 * kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
            struct Unmap {
              float* memory;
              ~Unmap() { munmap(memory, 2 * kBytes); }
            } const unmap{memory};
            if (i % 2 == 0) {
              comm.all_reduce(memory, memory + kCount, kCount, DataType::f32);
            } else {
              comm.group_start();
              comm.send(memory, kCount, DataType::f32, (r + 1) % size);
              comm.recv(memory + kCount, kCount, DataType::f32, (r + size - 1) % size);
              comm.group_end();
            }
            ++calls;
          }
        } catch (const Error&) {
        }
      });
    }
    eventually(10s, [&] { return calls.load() > 5; });
    const std::int64_t until = now_ns() + static_cast<std::int64_t>(random() % 6'000'000);
    while (now_ns() < until) cpu_relax();
    ranks[static_cast<std::size_t>(i % size)].abort("in the middle");
    for (std::thread& thread : threads) thread.join();
  }
}

// One communicator of several fails alone.
TEST(Abort, OtherCommunicatorsGoOn) {
  Processes ranks(3, [](const Place& place) {
    Communicator world = place.join(with_timeout(60s));
    Communicator child = world.split(0, place.rank());
    Communicator pair = world.split(place.rank() == 2 ? -1 : 0, 0);
    if (place.rank() == 1) child.abort("only this one");
    place.fails([&] { child.barrier(); });
    float x = 1;
    world.all_reduce(&x, &x, 1, DataType::f32);
    if (x != 3) place.give_up("wrong sum in world");
    if (pair) pair.barrier();
  });
  ASSERT_TRUE(ranks.finish(30s));
  for (int r = 0; r < 3; ++r) EXPECT_THAT(ranks.error(r), HasSubstr("only this one"));
}

}  // namespace
}  // namespace tutti::testing::abort_test
