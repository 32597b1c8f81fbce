// Every collective by every algorithm on ranks that are threads.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "collectives/algorithms/table.h"
#include "collectives/job/thread_job.h"
#include "tests/collectives/conformance.h"
#include "tests/collectives/ranks.h"

namespace tutti::testing::inproc_test {
namespace {

std::vector<Case> cases(int ranks) {
  std::vector<Case> all;
  const std::size_t counts[] = {0, 1, 2, 7, static_cast<std::size_t>(ranks), 1000, 100'003};
  for (const algorithms::Algorithm& algorithm : algorithms::table()) {
    if (!algorithms::serves(algorithm, {algorithm.collective, ranks, 0, {}})) continue;
    for (const std::size_t count : counts) {
      if (count > 10'000 && ranks > 5) continue;
      for (const bool in_place : {false, true}) {
        if (in_place && !algorithm.in_place) continue;
        Case c;
        c.collective = algorithm.collective;
        c.algorithm = algorithm.name;
        c.count = count;
        c.in_place = in_place;
        c.root = static_cast<int>(count) % ranks;
        all.push_back(c);
      }
    }
  }
  return all;
}

class Inproc : public ::testing::TestWithParam<int> {};

TEST_P(Inproc, EveryAlgorithmGivesWhatAPlainLoopGives) {
  const std::vector<Case> all = cases(GetParam());
  expect_no_errors(run_threads(GetParam(), [&](Communicator& comm) {
    for (const Case& c : all) check_case(comm, c);
  }));
}

TEST_P(Inproc, EveryTypeAndOp) {
  expect_no_errors(run_threads(GetParam(), [&](Communicator& comm) {
    for (int type = 0; type < kDataTypes; ++type) {
      for (int op = 0; op < kReduceOps; ++op) {
        if (!applies(static_cast<ReduceOp>(op), static_cast<DataType>(type))) continue;
        for (const std::size_t count : {std::size_t{5}, std::size_t{5000}}) {
          Case c;
          c.count = count;
          c.type = static_cast<DataType>(type);
          c.op = static_cast<ReduceOp>(op);
          for (const Collective collective : {Collective::all_reduce, Collective::reduce_scatter, Collective::reduce}) {
            c.collective = collective;
            check_case(comm, c);
          }
        }
      }
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(Ranks, Inproc, ::testing::Values(1, 2, 3, 4, 5, 8, 16),
                         [](const auto& info) { return std::to_string(info.param); });

TEST(InprocFabricTest, ARankThatHasGivenUpIsNamed) {
  ThreadJob job(2);
  const std::vector<int> members{0, 1};
  const transport::WindowSizes sizes{.ranks = 2};
  const NameOf name_of = [](int rank) { return "rank " + std::to_string(rank) + " of a group"; };
  const auto made = job.connect(1, members, 1, name_of, sizes, [&](const Words& mine) -> Result<Words> {
    std::uint64_t told = 0;
    const auto fails = [&](const Words& words) -> Result<Words> {
      told = words.front();
      return Status(Code::aborted, "the exchange failed");
    };
    EXPECT_FALSE(job.connect(1, members, 0, name_of, sizes, fails).ok());
    return Words{told, mine.front()};
  });
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), Code::aborted);
  EXPECT_EQ(made.status().message(), "rank 0 of a group has given up making this communicator");
}

}  // namespace
}  // namespace tutti::testing::inproc_test
