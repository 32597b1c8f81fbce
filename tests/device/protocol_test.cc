// The flag protocol between kernels: halves and cells used again and again, replay, wrong calls, abort, deadlines.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "collectives/algorithms/table.h"
#include "tests/support/device_job.h"

namespace tutti::testing::protocol_test {
namespace {

using executor::cuda::Failure;
using executor::cuda::flatten;
using executor::cuda::limits_of;
using executor::cuda::prepare_for_device;
using Number = std::uint32_t;

transport::DeviceWindowSizes window(int ranks) {
  return {.ranks = ranks, .lanes = 4, .scratch_half = 8192, .published_half = 8192, .express_bytes = 1024};
}

std::vector<std::byte> program(const DeviceJob& job, int rank, const char* algorithm, std::size_t count, int strips,
                               Collective collective = Collective::all_reduce) {
  const auto* row = algorithms::find(collective, algorithm);
  const auto plan = std::make_shared<const plan::Plan>(
      row->build({.collective = collective, .ranks = job.sizes().ranks, .host_of_rank = {}}));
  auto prepared = prepare_for_device(plan, rank, {collective, DataType::u32, ReduceOp::sum, 0, count},
                                     limits_of(job.sizes(), strips, 1024));
  EXPECT_TRUE(prepared.ok()) << prepared.status().message();
  return flatten(*prepared.value());
}

Number number(int call, int rank, std::size_t i) {
  return static_cast<Number>(call) * 7919 + static_cast<Number>(rank) * 104729 + static_cast<Number>(i) * 31;
}

// A rank that fails notifies the others, as the host does.
class Watch {
 public:
  explicit Watch(DeviceJob& job) : job_(job), thread_([this] { run(); }) {}
  ~Watch() {
    done_.store(true);
    thread_.join();
  }

 private:
  void run() {
    while (!done_.load()) {
      bool failed = false;
      for (int r = 0; r < job_.sizes().ranks; ++r) {
        failed |= std::atomic_ref<std::uint64_t>(job_.rank(r).host().verdict.state).load() != 0;
      }
      for (int r = 0; failed && r < job_.sizes().ranks; ++r) {
        std::atomic_ref<std::uint64_t>(job_.rank(r).host().abort).store(1);
      }
      std::this_thread::yield();
    }
  }

  DeviceJob& job_;
  std::atomic<bool> done_{false};
  std::thread thread_;
};

std::vector<transport::DeviceVerdict> verdicts(DeviceJob& job) {
  std::vector<transport::DeviceVerdict> all;
  for (int r = 0; r < job.sizes().ranks; ++r) {
    transport::DeviceVerdict& verdict = job.rank(r).host().verdict;
    if (std::atomic_ref<std::uint64_t>(verdict.state).load(std::memory_order_acquire) != 0) all.push_back(verdict);
  }
  return all;
}

bool tells(DeviceJob& job, Failure kind) {
  for (const auto& verdict : verdicts(job)) {
    if (verdict.kind == static_cast<std::uint64_t>(kind)) return true;
  }
  return false;
}

// Calls of several kinds in a random order, with ranks that fall behind: each has its own numbers, so anything that is
// left over from another call shows.
void many_calls(int ranks, int calls, unsigned seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  struct Kind {
    const char* algorithm;
    std::size_t count;
    int strips;
  };
  const std::array<Kind, 7> kinds = {{{"one_shot", 3, 1},
                                      {"one_shot", 200, 3},
                                      {"one_shot", 3000, 2},
                                      {"two_shot", 700, 4},
                                      {"ring", 5000, 2},
                                      {"put_two_shot", 100, 1},
                                      {"double_binary_tree", 900, 2}}};
  DeviceJob job(ranks, window(ranks));
  job.disturb(seed);
  std::vector<std::vector<std::vector<std::byte>>> programs(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) {
    for (const Kind& kind : kinds) {
      programs[static_cast<std::size_t>(r)].push_back(program(job, r, kind.algorithm, kind.count, kind.strips));
    }
  }
  job.run([&](DeviceRank& rank) {
    std::minstd_rand same(seed);  // on all ranks
    std::minstd_rand own(seed + 1 + static_cast<unsigned>(rank.index()));
    std::vector<Number> in(5000);
    std::vector<Number> out(5000);
    for (int call = 0; call < calls; ++call) {
      const std::size_t k = same() % kinds.size();
      for (std::size_t i = 0; i < kinds[k].count; ++i) in[i] = number(call, rank.index(), i);
      for (unsigned pause = own() % 8 == 0 ? own() % 200 : 0; pause > 0; --pause) std::this_thread::yield();
      ASSERT_TRUE(rank.call(programs[static_cast<std::size_t>(rank.index())][k],
                            {.input = in.data(), .output = out.data(), .fingerprint = k + 1}));
      for (std::size_t i = 0; i < kinds[k].count; ++i) {
        Number sum = 0;
        for (int r = 0; r < ranks; ++r) sum += number(call, r, i);
        ASSERT_EQ(out[i], sum) << kinds[k].algorithm << ", call " << call << ", element " << i;
      }
    }
  });
}

TEST(DeviceProtocol, HalvesAndCellsAreUsedAgain2) { many_calls(2, 150, 11); }
TEST(DeviceProtocol, HalvesAndCellsAreUsedAgain3) { many_calls(3, 100, 12); }
TEST(DeviceProtocol, HalvesAndCellsAreUsedAgain5) { many_calls(5, 60, 13); }

// Calls that share kernels, put together by each rank as it likes. Each call adds up what the one before it has
// brought, in other strips than it: a block that begins too early finds old numbers.
void calls_in_groups(int ranks, int calls, unsigned seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  constexpr std::size_t kCount = 200;
  constexpr std::array<std::pair<const char*, int>, 6> kKinds = {
      {{"one_shot", 3}, {"two_shot", 4}, {"ring", 1}, {"one_shot", 1}, {"double_binary_tree", 2}, {"two_shot", 1}}};
  DeviceJob job(ranks, window(ranks));
  job.disturb(seed);
  job.run([&](DeviceRank& rank) {
    std::vector<std::vector<std::byte>> programs;
    for (const auto& [algorithm, strips] : kKinds) {
      programs.push_back(program(job, rank.index(), algorithm, kCount, strips));
    }
    std::vector<std::vector<Number>> data(static_cast<std::size_t>(calls) + 1, std::vector<Number>(kCount));
    for (std::size_t i = 0; i < kCount; ++i) data[0][i] = number(0, rank.index(), i);
    std::minstd_rand same(seed);  // on all ranks
    std::minstd_rand own(seed + 1 + static_cast<unsigned>(rank.index()));
    for (std::size_t call = 0; call + 1 < data.size();) {
      std::vector<std::pair<const std::vector<std::byte>*, DeviceCallArguments>> together;
      const std::size_t most = 1 + own() % executor::cuda::kMostCalls;
      for (; together.size() < most && call + 1 < data.size(); ++call) {
        const std::size_t k = same() % kKinds.size();
        together.push_back(
            {&programs[k], {.input = data[call].data(), .output = data[call + 1].data(), .fingerprint = k + 1}});
      }
      ASSERT_TRUE(rank.call_together(together));
    }
    std::vector<Number> expected(kCount);
    for (std::size_t i = 0; i < kCount; ++i) {
      for (int r = 0; r < ranks; ++r) expected[i] += number(0, r, i);
    }
    for (int call = 1; call <= calls; ++call) {
      ASSERT_EQ(data[static_cast<std::size_t>(call)], expected) << "call " << call;
      for (Number& n : expected) n *= static_cast<Number>(ranks);
    }
    EXPECT_EQ(rank.state().sequence, static_cast<std::uint64_t>(calls));
    EXPECT_EQ(rank.host().finished, static_cast<std::uint64_t>(calls));
  });
}

TEST(DeviceProtocol, CallsInGroups2) { calls_in_groups(2, 150, 21); }
TEST(DeviceProtocol, CallsInGroups3) { calls_in_groups(3, 100, 22); }
TEST(DeviceProtocol, CallsInGroups5) { calls_in_groups(5, 60, 23); }

// A broadcast's root has no rank to wait for inside the call: it must not run away.
TEST(DeviceProtocol, ARankThatOnlyGivesIsHeldBack) {
  constexpr int kRanks = 3;
  DeviceJob job(kRanks, window(kRanks));
  job.disturb(5);
  job.run([&](DeviceRank& rank) {
    const auto mine = program(job, rank.index(), "one_shot", 20, 1, Collective::broadcast);
    std::vector<Number> in(20);
    std::vector<Number> out(20);
    for (int call = 0; call < 100; ++call) {
      for (std::size_t i = 0; i < in.size(); ++i) in[i] = number(call, rank.index(), i);
      if (rank.index() == 2 && call % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      ASSERT_TRUE(rank.call(mine, {.input = in.data(), .output = out.data()}));
      for (std::size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], number(call, 0, i)) << "call " << call;
    }
  });
}

// As a graph: arguments made once, launched many times.
TEST(DeviceProtocol, ReplayOfTheSameArguments) {
  constexpr int kRanks = 4;
  for (const char* algorithm : {"one_shot", "two_shot", "ring"}) {
    DeviceJob job(kRanks, window(kRanks));
    job.run([&](DeviceRank& rank) {
      const auto mine = program(job, rank.index(), algorithm, 150, 2);
      std::vector<Number> in(150);
      std::vector<Number> out(150);
      const auto arguments = rank.arguments(mine, {.input = in.data(), .output = out.data()});
      for (int call = 0; call < 60; ++call) {
        for (std::size_t i = 0; i < in.size(); ++i) in[i] = number(call, rank.index(), i);
        ASSERT_TRUE(rank.launch(kernel_of(mine), blocks_of(mine), arguments));
        for (std::size_t i = 0; i < out.size(); ++i) {
          Number sum = 0;
          for (int r = 0; r < kRanks; ++r) sum += number(call, r, i);
          ASSERT_EQ(out[i], sum) << algorithm << ", call " << call;
        }
      }
      EXPECT_EQ(rank.state().sequence, 60u);
      EXPECT_EQ(rank.host().finished, 60u);
    });
  }
}

// Lines of the same flag, left from 2^32 - 1 calls ago, must be gone when their number comes again. The calls before it
// are too small to write over them.
TEST(DeviceProtocol, FlagsThatComeAgainFindCleanLines) {
  constexpr int kRanks = 2;
  DeviceJob job(kRanks, window(kRanks));
  const std::uint64_t boundary = 3 * executor::cuda::kCleanEvery;
  const std::uint64_t before = boundary - 3;  // the last call, as the windows say
  for (int r = 0; r < kRanks; ++r) {
    job.rank(r).state().sequence = before;
    for (int sender = 0; sender < kRanks; ++sender) {
      auto* call = reinterpret_cast<transport::DeviceCall*>(job.window(r) + job.sizes().call_offset(sender, before));
      call->sequence = before;
      for (const std::uint64_t stale : {boundary + 3, boundary + 4}) {
        auto* words = reinterpret_cast<std::uint64_t*>(job.window(r) + job.sizes().cell_offset(sender, stale));
        for (std::size_t i = 0; i < job.sizes().cell_bytes() / 8; ++i) {
          words[i] = std::uint64_t{executor::cuda::flag_of(stale)} << 32 | 4711;
        }
      }
    }
  }
  job.run([&](DeviceRank& rank) {
    const auto small = program(job, rank.index(), "one_shot", 2, 1);
    const auto large = program(job, rank.index(), "one_shot", 100, 1);
    std::vector<Number> in(100);
    std::vector<Number> out(100);
    for (int call = 0; call < 12; ++call) {
      const bool is_small = before + 1 + static_cast<std::uint64_t>(call) < boundary + 3;
      for (std::size_t i = 0; i < in.size(); ++i) in[i] = number(call, rank.index(), i);
      if (rank.index() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ASSERT_TRUE(rank.call(is_small ? small : large, {.input = in.data(), .output = out.data()}));
      for (std::size_t i = 0; i < (is_small ? 2 : out.size()); ++i) {
        ASSERT_EQ(out[i], number(call, 0, i) + number(call, 1, i)) << "call " << call;
      }
    }
  });
}

TEST(DeviceProtocol, OneRankInPlaceMakesAllTakeTheOtherProgram) {
  constexpr int kRanks = 3;
  constexpr std::size_t kCount = 40;
  DeviceJob job(kRanks, window(kRanks));
  job.run([&](DeviceRank& rank) {
    const auto direct = program(job, rank.index(), "direct", kCount, 1, Collective::all_to_all);
    const auto pairwise = program(job, rank.index(), "pairwise", kCount, 2, Collective::all_to_all);
    std::vector<Number> in(kCount * kRanks);
    std::vector<Number> out(kCount * kRanks);
    for (int call = 0; call < 8; ++call) {
      const bool in_place = rank.index() == 1 && call % 2 == 1;
      std::vector<Number>& from = in_place ? out : in;
      for (std::size_t i = 0; i < from.size(); ++i) from[i] = number(call, rank.index(), i);
      ASSERT_TRUE(rank.call(direct, {.input = from.data(),
                                     .output = out.data(),
                                     .flags = in_place ? std::uint64_t{transport::kDeviceInPlace} : 0,
                                     .if_in_place = &pairwise}));
      for (std::size_t i = 0; i < out.size(); ++i) {
        const int from_rank = static_cast<int>(i / kCount);
        ASSERT_EQ(out[i], number(call, from_rank, static_cast<std::size_t>(rank.index()) * kCount + i % kCount))
            << call;
      }
    }
  });
}

// What the ranks of a failing call read and write. It outlives all of them: a rank whose call has ended early would
// free what another one's still reads.
struct Buffers {
  Buffers(int ranks, std::size_t count) : in(static_cast<std::size_t>(ranks), std::vector<Number>(count)), out(in) {}

  DeviceCallArguments of(const DeviceRank& rank) {
    const auto r = static_cast<std::size_t>(rank.index());
    return {.input = in[r].data(), .output = out[r].data()};
  }

  std::vector<std::vector<Number>> in;
  std::vector<std::vector<Number>> out;
};

TEST(DeviceProtocol, AnotherCallIsFoundOut) {
  for (const std::size_t count : {10u, 3000u}) {  // by lines that carry data, and by signals
    constexpr int kRanks = 3;
    DeviceJob job(kRanks, window(kRanks));
    Buffers buffers(kRanks, count);
    {
      Watch watch(job);
      job.run([&](DeviceRank& rank) {
        const auto mine = program(job, rank.index(), "one_shot", count, 1);
        const std::uint64_t other = rank.index() == 1 ? 1 : 0;
        bool well = true;
        // Two calls are as they should be. A rank that has all that it waits for before it learns of the other call may
        // end the third; no rank ends the fourth.
        for (int call = 0; call < 5 && well; ++call) {
          DeviceCallArguments arguments = buffers.of(rank);
          arguments.fingerprint = 5 + (call == 2 ? other : 0);
          arguments.count = count + (call == 2 ? other : 0);
          well = rank.call(mine, arguments);
          EXPECT_TRUE(call >= 2 || well);
          EXPECT_TRUE(call < 3 || !well);
        }
        EXPECT_FALSE(well);
      });
    }
    ASSERT_TRUE(tells(job, Failure::mismatch));
    for (const auto& verdict : verdicts(job)) {
      if (verdict.kind != static_cast<std::uint64_t>(Failure::mismatch)) continue;
      EXPECT_EQ(verdict.call, 3u);
      EXPECT_EQ(verdict.own.count + verdict.other.count, 2 * count + 1) << "one of the two is rank 1's";
    }
  }
}

// The third call of a kernel that has five, with blocks that have nothing to do in it.
TEST(DeviceProtocol, AnotherCallInAGroupIsFoundOut) {
  constexpr int kRanks = 3;
  DeviceJob job(kRanks, window(kRanks));
  Buffers buffers(kRanks, 700);
  {
    Watch watch(job);
    job.run([&](DeviceRank& rank) {
      const auto wide = program(job, rank.index(), "two_shot", 700, 4);
      const auto narrow = program(job, rank.index(), "one_shot", 10, 1);
      std::vector<std::pair<const std::vector<std::byte>*, DeviceCallArguments>> calls;
      for (std::uint64_t call = 0; call < 5; ++call) {
        const std::uint64_t other = call == 2 && rank.index() == 1 ? 1 : 0;
        DeviceCallArguments arguments = buffers.of(rank);
        arguments.fingerprint = 5 + other;
        arguments.count = 10 + other;
        calls.push_back({call == 2 ? &narrow : &wide, arguments});
      }
      EXPECT_FALSE(rank.call_together(calls));
      EXPECT_LE(rank.state().sequence, 3u) << "a rank that had all that it waits for may have ended the third";
    });
  }
  ASSERT_TRUE(tells(job, Failure::mismatch));
  for (const auto& verdict : verdicts(job)) {
    if (verdict.kind != static_cast<std::uint64_t>(Failure::mismatch)) continue;
    EXPECT_EQ(verdict.call, 3u);
    EXPECT_EQ(verdict.own.count + verdict.other.count, 21u) << "one of the two is rank 1's";
  }
}

TEST(DeviceProtocol, AbortEndsAKernelThatWaits) {
  constexpr int kRanks = 2;
  for (const std::size_t count : {10u, 3000u}) {
    DeviceJob job(kRanks, window(kRanks));
    Buffers buffers(kRanks, count);
    job.run([&](DeviceRank& rank) {
      if (rank.index() == 1) {  // never calls; aborts when the other one waits
        while (std::atomic_ref<std::uint64_t>(job.rank(0).host().entered).load() == 0) std::this_thread::yield();
        std::atomic_ref<std::uint64_t>(job.rank(0).host().abort).store(1);
        return;
      }
      const auto mine = program(job, 0, "one_shot", count, 2);
      EXPECT_FALSE(rank.call(mine, buffers.of(rank)));
      EXPECT_FALSE(rank.call(mine, buffers.of(rank))) << "no call runs any more";
    });
    ASSERT_TRUE(tells(job, Failure::aborted));
    EXPECT_EQ(job.rank(0).state().sequence, 0u);
  }
}

TEST(DeviceProtocol, ADeadlineNamesWhoHasNotCome) {
  constexpr int kRanks = 3;
  for (const std::size_t count : {10u, 3000u}) {
    DeviceJob job(kRanks, window(kRanks));
    Buffers buffers(kRanks, count);
    job.use_fake_clock();
    Watch watch(job);
    std::thread clock([&] {
      while (std::atomic_ref<std::uint64_t>(job.rank(0).host().abort).load() == 0) {
        job.advance_clock(1'000'000'000);
        std::this_thread::yield();
      }
    });
    job.run([&](DeviceRank& rank) {
      if (rank.index() == 2) return;
      const auto mine = program(job, rank.index(), "one_shot", count, 1);
      EXPECT_FALSE(rank.call(mine, buffers.of(rank)));
    });
    clock.join();
    ASSERT_TRUE(tells(job, Failure::deadline));
    for (const auto& verdict : verdicts(job)) {
      if (verdict.kind != static_cast<std::uint64_t>(Failure::deadline)) continue;
      EXPECT_EQ(verdict.call, 1u);
      EXPECT_EQ(verdict.absent & 4u, 4u);
      EXPECT_GT(verdict.waited_ns, job.rank(0).host().limit_ns);
    }
  }
}

TEST(DeviceProtocol, AHandleThatIsNotMappedHereIsAnError) {
  constexpr int kRanks = 2;
  DeviceJob job(kRanks, window(kRanks));
  Buffers buffers(kRanks, 700);
  Watch watch(job);
  job.run([&](DeviceRank& rank) {
    const auto mine = program(job, rank.index(), "two_shot", 700, 1);
    auto arguments = rank.arguments(mine, buffers.of(rank));
    if (rank.index() == 1) arguments.calls[0].announcement.input = transport::device_handle(3, 64);
    EXPECT_FALSE(rank.launch(kernel_of(mine), blocks_of(mine), arguments) && rank.index() == 0);
  });
  EXPECT_TRUE(tells(job, Failure::unreachable));
}

}  // namespace
}  // namespace tutti::testing::protocol_test
