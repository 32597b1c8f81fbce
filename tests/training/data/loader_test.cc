#include "training/data/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <iterator>
#include <latch>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

#include "tests/training/data/support.h"
#include "training/data/sampler.h"

namespace tutti::training::loader_test {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kSeed = 20261122;  // of the random cases; each failure prints its case

std::ptrdiff_t threads_of_this_process() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}

/// The kernel may list a joined thread for an instant more: joining returns when its memory is free.
void wait_for_threads(std::ptrdiff_t count) {
  while (threads_of_this_process() != count) std::this_thread::yield();
}

std::uint64_t square(std::uint64_t number) { return number * number; }

TEST(Loader, GivesAllBatchesInOrder) {
  Random random(kSeed);
  for (int i = 0; i < 100; ++i) {
    const std::uint64_t begin = random.below(5), end = begin + random.below(200);
    const LoaderOptions options{static_cast<int>(1 + random.below(5)), 1 + random.below(7), begin, end};
    SCOPED_TRACE(::testing::Message() << "threads " << options.threads << " depth " << options.depth << " begin "
                                      << begin << " end " << end);
    Loader<std::uint64_t> loader(square, options);
    for (std::uint64_t number = begin; number < end; ++number) {
      EXPECT_EQ(loader.position(), number);
      EXPECT_EQ(loader.next(), square(number));
    }
    EXPECT_EQ(loader.next(), std::nullopt);
    EXPECT_EQ(loader.next(), std::nullopt);
    EXPECT_EQ(loader.position(), end);
  }
}

TEST(Loader, KeepsTheOrderWhenLaterBatchesAreDoneFirst) {
  std::latch others(3);
  Loader<std::uint64_t> loader(
      [&](std::uint64_t number) {
        if (number == 0) others.wait();  // hangs here unless batches 1, 2 and 3 are made beside it
        if (number >= 1 && number <= 3) others.count_down();
        return number;
      },
      {.threads = 4, .depth = 4, .end = 8});
  for (std::uint64_t number = 0; number < 8; ++number) EXPECT_EQ(loader.next(), number);
}

TEST(Loader, ReadsAheadAsFarAsDepthAndNoFurther) {
  constexpr std::size_t kDepth = 3;
  std::latch ahead(kDepth);
  std::atomic<std::uint64_t> handed_out{0};
  Loader<std::uint64_t> loader(
      [&](std::uint64_t number) {
        // Inside next() the loader already counts a batch that the test does not yet: one more may be under way.
        EXPECT_LE(number, handed_out + kDepth);
        if (number < kDepth) ahead.count_down();
        return number;
      },
      {.threads = 2, .depth = kDepth, .end = 1000});
  ahead.wait();  // without a call of next()
  for (std::uint64_t number = 0; number < 1000; ++number) {
    EXPECT_EQ(loader.next(), number);
    ++handed_out;
  }
}

TEST(Loader, WorksInOtherThreads) {
  std::mutex mutex;
  std::set<std::thread::id> ids;
  std::latch both(2);
  Loader<int> loader(
      [&](std::uint64_t) {
        {
          const std::lock_guard lock(mutex);
          ids.insert(std::this_thread::get_id());
        }
        both.arrive_and_wait();
        return 0;
      },
      {.threads = 2, .depth = 2, .end = 2});
  while (loader.next()) {
  }
  EXPECT_EQ(ids.size(), 2u);
  EXPECT_EQ(ids.count(std::this_thread::get_id()), 0u);
}

TEST(Loader, MovesBatchesAndKeepsNone) {
  struct Batch {
    explicit Batch(std::uint64_t number) : value(std::make_unique<std::uint64_t>(number)) {}
    std::unique_ptr<std::uint64_t> value;  // move only
  };
  Loader<Batch> moving([](std::uint64_t number) { return Batch(number); }, {.end = 10});
  for (std::uint64_t number = 0; number < 10; ++number) EXPECT_EQ(*moving.next()->value, number);

  Loader<std::shared_ptr<int>> shared([](std::uint64_t) { return std::make_shared<int>(0); }, {.end = 10});
  while (const auto batch = shared.next()) EXPECT_EQ(batch->use_count(), 1);
}

TEST(Loader, AnErrorComesWithItsBatchAndStays) {
  struct Own : std::runtime_error {
    Own() : std::runtime_error("the disk is on fire\nand a call stack") {}
  };
  for (int threads : {1, 3}) {
    Loader<std::uint64_t> loader(
        [](std::uint64_t number) {
          if (number == 5) throw Own();
          return number;
        },
        {.threads = threads, .depth = 4});
    for (std::uint64_t number = 0; number < 5; ++number) EXPECT_EQ(loader.next(), number);
    for (int again = 0; again < 2; ++again) {
      try {
        loader.next();
        FAIL() << "no error";
      } catch (const Error& error) {
        EXPECT_STREQ(error.what(), "Loader: batch 5: the disk is on fire");
        EXPECT_EQ(error.code(), Code::system);
        EXPECT_THROW(std::rethrow_if_nested(error), Own);
      }
      EXPECT_EQ(loader.position(), 5u);
    }
  }
}

TEST(Loader, KeepsTheCodeOfAnErrorAndTakesAnyThrow) {
  Loader<int> named([](std::uint64_t) -> int { throw Error(Code::memory_limit, "too much"); });
  try {
    named.next();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "Loader: batch 0: too much");
    EXPECT_EQ(error.code(), Code::memory_limit);
  }
  Loader<int> strange([](std::uint64_t) -> int { throw 7; });
  EXPECT_THAT(error_of([&] { strange.next(); }), HasSubstr("batch 0: something that is no std::exception"));
}

TEST(Loader, LeavesNoThreadWhenItGoesEarly) {
  const std::ptrdiff_t before = threads_of_this_process();
  for (std::uint64_t taken = 0; taken < 20; ++taken) {
    Loader<std::uint64_t> loader(square, {.threads = 3, .depth = 5});  // without an end
    wait_for_threads(before + 3);
    for (std::uint64_t number = 0; number < taken; ++number) loader.next();
  }
  {
    Loader<int> failing([](std::uint64_t) -> int { throw 7; }, {.threads = 2, .depth = 3});
  }
  wait_for_threads(before);
}

TEST(Loader, GoesOnWhereBatchesWereHandedOut) {
  std::uint64_t saved = 0;
  {
    Loader<std::uint64_t> loader(square, {.threads = 2, .depth = 8, .end = 50});
    for (int i = 0; i < 13; ++i) loader.next();
    saved = loader.position();
  }
  EXPECT_EQ(saved, 13u);
  Loader<std::uint64_t> resumed(square, {.threads = 2, .depth = 8, .begin = saved, .end = 50});
  for (std::uint64_t number = 13; number < 50; ++number) EXPECT_EQ(resumed.next(), square(number));
  EXPECT_EQ(resumed.next(), std::nullopt);
}

// Threads of one rank read ahead; the run ends early and goes on with another number of ranks: every sample once.
TEST(Loader, WithASamplerResumesOnOtherRanks) {
  Random random(kSeed, 2);
  for (int i = 0; i < 30; ++i) {
    const std::uint64_t samples = 1 + random.below(200);
    SamplerState state{.samples = samples, .seed = random.next()};
    SCOPED_TRACE(::testing::Message() << "samples " << samples << " seed " << state.seed);
    std::vector<std::int64_t> seen;
    while (state.position < samples) {
      const int ranks = static_cast<int>(1 + random.below(4));
      const std::uint64_t rows = 1 + random.below(6), stop_after = random.below(8);
      SamplerState saved;
      for (int rank = 0; rank < ranks; ++rank) {
        DistributedSampler sampler(samples, rank, ranks);
        sampler.restore(state);
        Loader<std::vector<std::int64_t>> loader(
            [&](std::uint64_t number) { return sampler.peek(number, rows)->indices; },
            {.threads = 2, .depth = 4, .end = sampler.steps(rows)});
        for (std::uint64_t step = 0; step < stop_after; ++step) {
          if (const auto batch = loader.next()) seen.insert(seen.end(), batch->begin(), batch->end());
        }
        saved = sampler.state_after(loader.position(), rows);
      }
      state = saved;
      EXPECT_EQ(seen.size(), state.position);
    }
    std::sort(seen.begin(), seen.end());
    for (std::size_t k = 0; k < seen.size(); ++k) ASSERT_EQ(seen[k], static_cast<std::int64_t>(k));
    EXPECT_EQ(seen.size(), samples);
  }
}

TEST(Loader, MistakesAreNamed) {
  const auto made_with = [](const LoaderOptions& options) {
    return error_of([&] { Loader<std::uint64_t> loader(square, options); });
  };
  EXPECT_EQ(made_with({.threads = 0}), "Loader: 0 threads and depth 2; both must be at least 1");
  EXPECT_EQ(made_with({.depth = 0}), "Loader: 1 threads and depth 0; both must be at least 1");
  EXPECT_EQ(made_with({.begin = 3, .end = 2}), "Loader: begin 3 is past end 2");
}

}  // namespace
}  // namespace tutti::training::loader_test
