// What the counters of a run say equals what the plan says, byte for byte and signal for signal; and for the textbook's
// algorithms, what the textbook says.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "collectives/algorithms/table.h"
#include "collectives/plan/count.h"
#include "tests/collectives/must.h"
#include "tests/collectives/ranks.h"

namespace tutti::testing::traffic_test {
namespace {

using plan::Counts;

struct Moved {
  std::uint64_t bytes = 0;
  std::uint64_t signals = 0;
  std::uint64_t rounds = 0;
};

/// Returns what one all_reduce of `count` f32 moves, by rank.
std::vector<Moved> moved(int ranks, const char* algorithm, std::size_t count, const Options& options = {}) {
  std::vector<Moved> all(static_cast<std::size_t>(ranks));
  expect_no_errors(run_threads(
      ranks,
      [&](Communicator& comm) {
        std::vector<float> data(count, 1.0f);
        comm.barrier();
        const Traffic before = comm.traffic();
        comm.all_reduce(data.data(), data.data(), count, DataType::f32, ReduceOp::sum, {.algorithm = algorithm});
        const Traffic after = comm.traffic();
        MUST(after.calls == before.calls + 1);
        all[static_cast<std::size_t>(comm.rank())] = {after.bytes_put - before.bytes_put,
                                                      after.signals - before.signals,
                                                      static_cast<std::uint64_t>(comm.explain_last_call().rounds)};
      },
      options));
  return all;
}

/// Signals of one rank in a run of `rounds`: data signals in each, credits only where they will be waited for.
std::uint64_t signals_of(const plan::Plan& plan, std::size_t rank, std::uint64_t rounds) {
  std::uint64_t signals = 0;
  for (const plan::Lane& lane : plan.of_rank[rank].lanes) {
    for (const plan::Step& step : lane.steps) {
      if (step.kind != plan::StepKind::signal) continue;
      signals += step.guard == plan::Guard::always ? rounds : rounds > 2 ? rounds - 2 : 0;
    }
  }
  return signals;
}

class TrafficOf : public ::testing::TestWithParam<const char*> {};

TEST_P(TrafficOf, EqualsThePlan) {
  const algorithms::Algorithm* algorithm = algorithms::find(Collective::all_reduce, GetParam());
  Options little;
  little.memory_limit = std::size_t{1280} << 10;
  for (int ranks = 2; ranks <= 8; ++ranks) {
    const plan::Plan plan = algorithm->build({Collective::all_reduce, ranks, 0, {}});
    const std::vector<Counts> counts = plan::count(plan);
    for (const bool many_rounds : {false, true}) {
      const std::size_t piece = many_rounds ? 60'000 : 64;  // elements
      const std::vector<Moved> all =
          moved(ranks, GetParam(), piece * static_cast<std::size_t>(plan.pieces), many_rounds ? little : Options{});
      for (std::size_t r = 0; r < all.size(); ++r) {
        const Counts& c = counts[r];
        const auto pieces = static_cast<std::uint64_t>(c.pieces_put + c.pieces_read + c.pieces_written);
        EXPECT_EQ(all[r].bytes, pieces * piece * sizeof(float)) << ranks << " ranks, rank " << r;
        EXPECT_EQ(all[r].signals, signals_of(plan, r, all[r].rounds)) << ranks << " ranks, rank " << r;
        if (!many_rounds) {
          EXPECT_EQ(all[r].rounds, 1u);
          EXPECT_EQ(all[r].signals, static_cast<std::uint64_t>(c.signals));
        } else if (plan.slots + plan.published > 0) {
          EXPECT_GT(all[r].rounds, 2u);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Algorithms, TrafficOf,
                         ::testing::Values("ring", "recursive_doubling", "halving_doubling", "double_binary_tree",
                                           "two_shot", "one_shot", "put_two_shot", "published_two_shot",
                                           "hierarchical"),
                         [](const auto& info) { return info.param; });

TEST(Traffic, TheTextbooksBytes) {
  for (const int n : {2, 4, 8}) {
    const std::size_t count = 8000;
    const std::uint64_t vector = count * sizeof(float);
    for (const char* algorithm : {"ring", "halving_doubling"}) {
      for (const Moved& m : moved(n, algorithm, count)) {
        EXPECT_EQ(m.bytes, 2 * (static_cast<std::uint64_t>(n) - 1) * vector / static_cast<std::uint64_t>(n))
            << algorithm;
      }
    }
    std::uint64_t sum = 0;
    for (const Moved& m : moved(n, "double_binary_tree", count)) sum += m.bytes;
    EXPECT_EQ(sum, 2 * (static_cast<std::uint64_t>(n) - 1) * vector);
  }
}

// A count that pieces do not divide: the ring's bytes over all ranks are still 2 (n - 1) vectors.
TEST(Traffic, UnevenPiecesAddUp) {
  std::uint64_t sum = 0;
  for (const Moved& m : moved(3, "ring", 1001)) sum += m.bytes;
  EXPECT_EQ(sum, 2u * 2u * 1001u * sizeof(float));
}

// What the counts say, and three words for each peer to tell them.
TEST(Traffic, UnequalPartsMoveNoMoreThanTheirCounts) {
  constexpr int kRanks = 3;
  expect_no_errors(run_threads(kRanks, [](Communicator& comm) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    const auto part = [](std::size_t from, std::size_t to) { return from * 10'000 + to * 100; };
    std::vector<std::size_t> send_counts, recv_counts;
    const std::vector<std::size_t> offsets = {0, 50'000, 100'000};
    for (std::size_t r = 0; r < kRanks; ++r) {
      send_counts.push_back(part(rank, r));
      recv_counts.push_back(part(r, rank));
    }
    std::vector<std::int32_t> out(150'000), in(150'000);
    for (const char* algorithm : {"direct", "pairwise", "linear"}) {
      comm.barrier();
      const Traffic before = comm.traffic();
      comm.all_to_allv(out.data(), send_counts.data(), offsets.data(), in.data(), recv_counts.data(), offsets.data(),
                       DataType::i32, {.algorithm = algorithm});
      const Traffic after = comm.traffic();
      MUST(comm.explain_last_call().algorithm == algorithm);
      MUST(after.calls == before.calls + 2);
      std::uint64_t wanted = (kRanks - 1) * 3 * sizeof(std::uint64_t);
      for (std::size_t r = 0; r < kRanks; ++r) {
        const bool reads = std::string(algorithm) == "direct";
        if (r != rank) wanted += (reads ? recv_counts : send_counts)[r] * sizeof(std::int32_t);
      }
      MUST(after.bytes_put - before.bytes_put == wanted);
    }
  }));
}

TEST(Traffic, SendsCountWhatIsSentOrFetched) {
  expect_no_errors(run_threads(2, [](Communicator& comm) {
    std::vector<std::byte> data(100'000);
    for (const std::size_t bytes : {std::size_t{100}, std::size_t{100'000}}) {
      comm.barrier();
      const std::uint64_t before = comm.traffic().bytes_put;
      if (comm.rank() == 0) comm.send(data.data(), bytes, DataType::u8, 1);
      if (comm.rank() == 1) comm.recv(data.data(), bytes, DataType::u8, 0);
      const std::uint64_t moved = comm.traffic().bytes_put - before;
      // Small ones the sender puts into a slot; large ones the receiver fetches.
      MUST(moved == ((bytes < 8192) == (comm.rank() == 0) ? bytes : 0));
    }
  }));
}

}  // namespace
}  // namespace tutti::testing::traffic_test
