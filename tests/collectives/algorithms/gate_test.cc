// Scratch is used again by every second call with no closing barrier: the gate alone keeps a rank that runs ahead from
// writing where a peer still reads. Small calls of changing kinds, roots and sizes follow each other closely, while
// ranks dawdle at random.
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "collectives/algorithms/table.h"
#include "tests/collectives/conformance.h"
#include "tests/collectives/must.h"
#include "tests/collectives/ranks.h"

namespace tutti::testing::gate_test {
namespace {

constexpr std::size_t kMost = 3000;

// ThreadSanitizer sees orders that did not happen to go wrong, at a tenth of the speed.
#if defined(__SANITIZE_THREAD__)
constexpr int kTimes = 1;
#else
constexpr int kTimes = 10;
#endif

void dawdle(std::mt19937& random) {
  if (random() % 4 != 0) return;
  for (unsigned i = random() % 3; i > 0; --i) sched_yield();
  volatile unsigned spin = 0;
  for (unsigned i = random() % 3000; i > 0; --i) spin = spin + 1;
}

/// One call with the algorithm, checked by what a call number and a rank make known of every element.
void call(Communicator& comm, const algorithms::Algorithm& algorithm, std::size_t count, int root, int number,
          std::vector<std::int32_t>& in, std::vector<std::int32_t>& out) {
  const int n = comm.size();
  const int rank = comm.rank();
  const auto ranks = static_cast<std::size_t>(n);
  const auto value = [number](int r, std::size_t i) {
    return static_cast<std::int32_t>(number * 31 + r * 1009 + static_cast<int>(i % 97));
  };
  for (std::size_t i = 0; i < count * ranks; ++i) in[i] = value(rank, i);
  const CallOptions options{.algorithm = algorithm.name};
  const auto sum = [&](std::size_t i) {
    std::int32_t s = 0;
    for (int r = 0; r < n; ++r) s += value(r, i);
    return s;
  };
  const auto type = DataType::i32;
  std::int32_t* o = out.data();
  const std::size_t own = static_cast<std::size_t>(rank) * count;
  switch (algorithm.collective) {
    case Collective::all_reduce:
      comm.all_reduce(in.data(), o, count, type, ReduceOp::sum, options);
      for (std::size_t i = 0; i < count; ++i) MUST(o[i] == sum(i));
      return;
    case Collective::reduce_scatter:
      comm.reduce_scatter(in.data(), o, count, type, ReduceOp::sum, options);
      for (std::size_t i = 0; i < count; ++i) MUST(o[i] == sum(own + i));
      return;
    case Collective::all_gather:
      comm.all_gather(in.data(), o, count, type, options);
      for (std::size_t i = 0; i < count * ranks; ++i) MUST(o[i] == value(static_cast<int>(i / count), i % count));
      return;
    case Collective::broadcast:
      comm.broadcast(in.data(), o, count, type, root, options);
      for (std::size_t i = 0; i < count; ++i) MUST(o[i] == value(root, i));
      return;
    case Collective::reduce:
      comm.reduce(in.data(), o, count, type, ReduceOp::sum, root, options);
      for (std::size_t i = 0; i < count && rank == root; ++i) MUST(o[i] == sum(i));
      return;
    case Collective::all_to_all:
      comm.all_to_all(in.data(), o, count, type, options);
      for (std::size_t i = 0; i < count * ranks; ++i) {
        MUST(o[i] == value(static_cast<int>(i / count), own + i % count));
      }
      return;
    case Collective::gather:
      comm.gather(in.data(), o, count, type, root, options);
      for (std::size_t i = 0; i < count * ranks && rank == root; ++i) {
        MUST(o[i] == value(static_cast<int>(i / count), i % count));
      }
      return;
    case Collective::scatter:
      comm.scatter(in.data(), o, count, type, root, options);
      for (std::size_t i = 0; i < count; ++i) MUST(o[i] == value(root, own + i));
      return;
    default: comm.barrier(); return;
  }
}

class Gate : public ::testing::TestWithParam<int> {};

TEST_P(Gate, CallsThatFollowCloselyKeepOutOfEachOthersScratch) {
  const unsigned seed = std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  SCOPED_TRACE("seed " + std::to_string(seed));
  const int calls = kTimes * (GetParam() > 4 ? 100 : 600);
  Options options;
  options.timeout = std::chrono::seconds(60);  // a broken gate may also show as a wait without end
  const auto body = [&](Communicator& comm) {
    std::mt19937 program(seed);
    std::mt19937 own(seed + 1 + static_cast<unsigned>(comm.rank()));
    std::vector<std::int32_t> in(kMost * static_cast<std::size_t>(comm.size()));
    std::vector<std::int32_t> out(in.size());
    const auto& table = algorithms::table();
    for (int number = 0; number < calls; ++number) {
      const algorithms::Algorithm& algorithm = table[program() % table.size()];
      const std::size_t counts[] = {1, 2, 33, 500, kMost};
      const std::size_t count = counts[program() % std::size(counts)];
      const int drawn = static_cast<int>(program() % static_cast<unsigned>(comm.size()));
      const int root = algorithms::serves(algorithm, {algorithm.collective, comm.size(), drawn, {}}) ? drawn : 0;
      dawdle(own);
      try {
        call(comm, algorithm, count, root, number, in, out);
      } catch (const std::exception& error) {
        throw std::runtime_error("call " + std::to_string(number) + ", " + name_of(algorithm.collective) + " " +
                                 algorithm.name + " of " + std::to_string(count) + ": " + error.what());
      }
    }
  };
  expect_no_errors(run_threads(GetParam(), body, options));
}

// The same call over and over, where only the root or the leaves have anything to wait for.
TEST_P(Gate, OneSidedCallsOverAndOver) {
  expect_no_errors(run_threads(GetParam(), [](Communicator& comm) {
    std::mt19937 own(static_cast<unsigned>(comm.rank()));
    std::vector<std::int32_t> in(100 * static_cast<std::size_t>(comm.size()));
    std::vector<std::int32_t> out(in.size());
    for (const auto& [collective, name] :
         {std::pair{Collective::broadcast, "one_shot"}, std::pair{Collective::broadcast, "chain"},
          std::pair{Collective::reduce, "one_shot"}, std::pair{Collective::reduce, "chain"},
          std::pair{Collective::gather, "linear"}, std::pair{Collective::scatter, "one_shot"},
          std::pair{Collective::gather, "one_shot"}, std::pair{Collective::broadcast, "double_binary_tree"}}) {
      const algorithms::Algorithm& algorithm = *algorithms::find(collective, name);
      for (int number = 0; number < 100 * kTimes; ++number) {
        dawdle(own);
        call(comm, algorithm, 100, number % 50 < 25 ? 0 : number % comm.size(), number, in, out);
      }
    }
  }));
}

// A root that publishes, and calls of no elements, wait for no peer. The rank that comes late must still find what the
// others announced, however many calls they wanted to make meanwhile.
TEST_P(Gate, RunAheadIsBounded) {
  std::atomic<bool> ahead{false};
  expect_no_errors(run_threads(GetParam(), [&](Communicator& comm) {
    std::vector<std::int32_t> data(2000, comm.rank());
    comm.barrier();
    for (int turn = 0; turn < 3; ++turn) {
      if (comm.rank() == 1) {
        while (!ahead.load()) sched_yield();
      }
      comm.broadcast(data.data(), data.data(), data.size(), DataType::i32, 0, {.algorithm = "one_shot"});
      for (const std::int32_t value : data) MUST(value == 0);
      for (int i = 0; i < 1000; ++i) {
        comm.all_reduce(data.data(), data.data(), 0, DataType::i32);
        if (i == 50) ahead.store(true);
      }
      comm.all_reduce(data.data(), data.data(), data.size(), DataType::i32);
      MUST(comm.traffic().calls == 1002u * (static_cast<unsigned>(turn) + 1) + 1);
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(Ranks, Gate, ::testing::Values(2, 3, 4, 7),
                         [](const auto& info) { return std::to_string(info.param); });

}  // namespace
}  // namespace tutti::testing::gate_test
