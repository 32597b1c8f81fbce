// Registered memory that is used again.
#include "training/memory/pool.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <random>
#include <thread>
#include <vector>

#include "tests/training/on_ranks.h"
#include "tutti/tutti.hpp"

namespace tutti::training::pool_test {
namespace {

constexpr std::size_t kMegabyte = std::size_t{1} << 20;

TEST(RegisteredPool, UsesABlockAgain) {
  RegisteredPool pool;
  void* first = pool.take(kMegabyte).get();
  const std::shared_ptr<void> second = pool.take(kMegabyte);
  EXPECT_EQ(second.get(), first);
  EXPECT_EQ(pool.stats().allocated, 1u);
  EXPECT_EQ(pool.stats().taken, 2u);
  EXPECT_EQ(pool.stats().live_bytes, kMegabyte);
  EXPECT_EQ(pool.stats().waiting_bytes, 0u);
}

TEST(RegisteredPool, GivesTwoBlocksToTwoUsers) {
  RegisteredPool pool;
  const auto a = pool.take(100), b = pool.take(100);
  EXPECT_NE(a.get(), b.get());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.get()) % 64, 0u);
  EXPECT_EQ(pool.stats().live_bytes, 2 * 128u);  // in units of 64 bytes
}

TEST(RegisteredPool, TakesTheSmallestThatFitsAndNoneMoreThanTwiceAsLarge) {
  RegisteredPool pool;
  void *small = nullptr, *large = nullptr;
  {
    const auto a = pool.take(3000 * 64), b = pool.take(1500 * 64);
    large = a.get();
    small = b.get();
  }
  EXPECT_EQ(pool.take(1500 * 64).get(), small);
  EXPECT_EQ(pool.take(1501 * 64).get(), large);
  EXPECT_EQ(pool.take(750 * 64).get(), small);
  EXPECT_EQ(pool.stats().allocated, 2u);
  const auto tiny = pool.take(749 * 64);
  EXPECT_NE(tiny.get(), small);
  EXPECT_EQ(pool.stats().allocated, 3u);
}

TEST(RegisteredPool, HoldsAtMostTwiceWhatWasLiveAtOnce) {
  const unsigned seed = 7;
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  RegisteredPool pool;
  std::vector<std::shared_ptr<void>> live;
  for (int i = 0; i < 2000; ++i) {
    if (live.size() > (i < 1000 ? 30 : 3) || (!live.empty() && random() % 2 == 0)) {
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(random() % live.size()));
    } else {
      live.push_back(pool.take(std::size_t{1} << (random() % 18)));
    }
    const RegisteredPool::Stats stats = pool.stats();
    ASSERT_LE(stats.live_bytes + stats.waiting_bytes, 2 * stats.peak_live_bytes);
  }
}

TEST(RegisteredPool, BlocksUsedOneAtATimeAreAllocatedOnce) {
  RegisteredPool pool;
  const std::vector<std::size_t> sizes{8 * kMegabyte, kMegabyte, 4096, 3 * kMegabyte, 64};
  for (int step = 0; step < 10; ++step) {
    for (const std::size_t size : sizes) pool.take(size);
  }
  EXPECT_EQ(pool.stats().allocated, sizes.size());
}

TEST(RegisteredPool, TensorsGoBackWithTheirStorage) {
  RegisteredPool pool;
  torch::Tensor view;
  {
    torch::Tensor whole = pool.empty({4, 8}, torch::kFloat64);
    EXPECT_EQ(whole.sizes(), (at::IntArrayRef{4, 8}));
    EXPECT_EQ(whole.scalar_type(), torch::kFloat64);
    view = whole[1];
  }
  EXPECT_EQ(pool.stats().live_bytes, 256u);
  view.reset();
  EXPECT_EQ(pool.stats().live_bytes, 0u);
  EXPECT_EQ(pool.empty({0, 8}, torch::kFloat32).numel(), 0);
  EXPECT_EQ(pool.take(0), nullptr);
}

TEST(RegisteredPool, BlocksOutliveThePool) {
  std::shared_ptr<void> block;
  {
    RegisteredPool pool;
    block = pool.take(kMegabyte);
  }
  static_cast<char*>(block.get())[kMegabyte - 1] = 1;
  block.reset();
}

TEST(RegisteredPool, TrimGivesUpWhatWaits) {
  RegisteredPool pool;
  const auto kept = pool.take(kMegabyte);
  pool.take(2 * kMegabyte);
  pool.trim();
  EXPECT_EQ(pool.stats().waiting_bytes, 0u);
  EXPECT_EQ(pool.stats().peak_live_bytes, kMegabyte);
}

TEST(RegisteredPool, RefusesMoreThanThereIsByName) {
  RegisteredPool pool;
  try {
    pool.take(std::size_t{1} << 62);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::memory_limit);
  }
  EXPECT_EQ(pool.stats().live_bytes, 0u);
  EXPECT_EQ(pool.stats().peak_live_bytes, 0u);
  EXPECT_NE(pool.take(64), nullptr);
}

TEST(RegisteredPool, AnyThreadTakesAndReleases) {
  RegisteredPool pool;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t] {
      std::vector<std::shared_ptr<void>> live(8);
      for (std::size_t i = 0; i < 4000; ++i) {
        auto& mine = live[i % live.size()];
        mine = pool.take(64 << (i % 5));
        *static_cast<int*>(mine.get()) = t;
        for (const auto& block : live) {
          if (block && *static_cast<int*>(block.get()) != t) ADD_FAILURE() << "two threads have one block";
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool.stats().live_bytes, 0u);
  EXPECT_EQ(pool.stats().taken, 16000u);
}

TEST(RegisteredPool, PeersReachItsBlocks) {
  const auto errors = on_ranks(2, [](int rank, Communicator comm) {
    for (int step = 0; step < 3; ++step) {
      const torch::Tensor x = RegisteredPool::process()->empty({1 << 16}, torch::kFloat32).fill_(rank + 1 + step);
      comm.all_reduce(x.data_ptr(), x.data_ptr(), 1 << 16, DataType::f32);
      EXPECT_TRUE((x == 3 + 2 * step).all().item<bool>());
    }
  });
  EXPECT_EQ(errors, nothing(2));
}

TEST(RegisteredPool, AForkedChildHasItsOwn) {
  const auto before = RegisteredPool::process()->take(4096);
  RegisteredPool::process()->take(8192);  // waits in the parent
  const pid_t child = fork();
  if (child == 0) {
    const auto stats = RegisteredPool::process()->stats();
    _exit(stats.taken == 0 && stats.waiting_bytes == 0 && stats.live_bytes == 0 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace tutti::training::pool_test
