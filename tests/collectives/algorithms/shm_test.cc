// Every collective by every algorithm on ranks that are processes, with buffers of every kind.
#include <cstddef>
#include <iterator>
#include <ostream>
#include <string>
#include <vector>

#include "collectives/algorithms/table.h"
#include "tests/collectives/conformance.h"
#include "tests/collectives/processes.h"
#include "tests/support/emulated.h"

namespace tutti::testing::shm_test {
namespace {

// How the ranks' buffers differ in one call.
struct Mix {
  const char* name;
  bool (*registered)(int rank);
  bool (*in_place)(int rank);
  bool lean;
};

constexpr bool none(int) { return false; }
constexpr bool all(int) { return true; }
constexpr bool odd(int rank) { return rank % 2 == 1; }
constexpr bool even(int rank) { return rank % 2 == 0; }

constexpr Mix kMixes[] = {
    {"plain", none, none, false},         {"registered", all, none, true},
    {"plain in place", none, all, false}, {"registered in place", all, all, false},
    {"one plain", even, none, true},      {"one in place", odd, even, false},
};

void run_case(Communicator& comm, Case c, const Mix& mix) {
  c.registered = mix.registered(comm.rank());
  c.in_place = mix.in_place(comm.rank());
  c.lean = mix.lean;
  check_case(comm, c);
}

struct Setting {
  int ranks;
  const char* cross_memory;
};

void PrintTo(const Setting& setting, std::ostream* out) {
  *out << setting.ranks << " ranks, cross-memory " << setting.cross_memory;
}

class Shm : public ::testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    constexpr int kMostEmulated = 8;  // each takes gigabytes
    if (GetParam().ranks > kMostEmulated) NOT_EMULATED("the processes of so many ranks need more memory than is here");
  }
};

// Scratch as small as it gets, so that the larger sizes take many rounds.
TEST_P(Shm, EveryAlgorithmGivesWhatAPlainLoopGives) {
  const int ranks = GetParam().ranks;
  const auto body = [ranks](Communicator& comm) -> std::string {
    for (const algorithms::Algorithm& algorithm : algorithms::table()) {
      const int root = ranks / 2;
      const bool rooted = algorithms::serves(algorithm, {algorithm.collective, ranks, root, {}});
      std::vector<std::size_t> counts = {0, 1, 1001};
      if (ranks <= 4) counts.push_back(30'011);
      for (const std::size_t count : counts) {
        for (const Mix& mix : kMixes) {
          Case c;
          c.collective = algorithm.collective;
          c.algorithm = algorithm.name;
          c.count = count;
          c.root = rooted ? root : 0;
          run_case(comm, c, mix);
          if (ranks > 4 && count > 1) break;
        }
      }
    }
    return "";
  };
  expect_no_errors(
      run_processes(ranks, body, {{"TUTTI_SCRATCH", "64K"}, {"TUTTI_CROSS_MEMORY", GetParam().cross_memory}}));
}

// What the planner chooses, with scratch as it comes.
TEST_P(Shm, ChosenAlgorithmsServeEveryTypeAndOp) {
  const auto body = [](Communicator& comm) -> std::string {
    for (int type = 0; type < kDataTypes; ++type) {
      for (int op = 0; op < kReduceOps; ++op) {
        if (!applies(static_cast<ReduceOp>(op), static_cast<DataType>(type))) continue;
        for (const std::size_t count : {std::size_t{3}, std::size_t{5000}}) {
          for (const Collective collective : {Collective::all_reduce, Collective::reduce_scatter, Collective::reduce}) {
            Case c;
            c.collective = collective;
            c.count = count;
            c.type = static_cast<DataType>(type);
            c.op = static_cast<ReduceOp>(op);
            run_case(comm, c, kMixes[static_cast<std::size_t>(type + op) % std::size(kMixes)]);
          }
          if (comm.size() > 4) break;
        }
      }
    }
    return "";
  };
  expect_no_errors(run_processes(GetParam().ranks, body, {{"TUTTI_CROSS_MEMORY", GetParam().cross_memory}}));
}

TEST_P(Shm, LargeMessagesOfTheChosenAlgorithms) {
  if (GetParam().ranks > 4) GTEST_SKIP() << "sizes are covered by fewer ranks";
  const auto body = [](Communicator& comm) -> std::string {
    for (int collective = 0; collective <= static_cast<int>(Collective::scatter); ++collective) {
      for (const Mix& mix : kMixes) {
        Case c;
        c.collective = static_cast<Collective>(collective);
        c.count = 270'001;  // past 1 MiB, from where on stores bypass the caches
        c.root = comm.size() - 1;
        run_case(comm, c, mix);
      }
    }
    return "";
  };
  expect_no_errors(run_processes(GetParam().ranks, body, {{"TUTTI_CROSS_MEMORY", GetParam().cross_memory}}));
}

// In place or not, what is registered needs no staging, whatever the kernel allows.
TEST_P(Shm, RegisteredBuffersAreReachedDirectly) {
  const auto body = [](Communicator& comm) -> std::string {
    Buffer<float> data(100'000);
    for (const std::size_t offset : {std::size_t{0}, std::size_t{50'000}}) {
      comm.all_reduce(data.data(), data.data() + offset, 50'000, DataType::f32);
      if (comm.explain_last_call().algorithm != "two_shot") return comm.explain_last_call().algorithm;
    }
    return "direct";
  };
  const auto outcomes = run_processes(GetParam().ranks, body, {{"TUTTI_CROSS_MEMORY", GetParam().cross_memory}});
  expect_no_errors(outcomes);
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.said, "direct");
}

TEST_P(Shm, OfSeveralNamesTheNextServesWhereTheFirstCannot) {
  if (GetParam().cross_memory == std::string("on")) NOT_EMULATED("there is no cross-memory access");
  const auto body = [](Communicator& comm) -> std::string {
    std::vector<float> send(50'000), recv(50'000);  // plain: two_shot reads them only by cross-memory access
    comm.all_reduce(send.data(), recv.data(), send.size(), DataType::f32, ReduceOp::sum,
                    {.algorithm = "two_shot,ring"});
    return comm.explain_last_call().algorithm;
  };
  const auto outcomes = run_processes(GetParam().ranks, body, {{"TUTTI_CROSS_MEMORY", GetParam().cross_memory}});
  expect_no_errors(outcomes);
  const std::string expected = GetParam().cross_memory == std::string("on") ? "two_shot" : "ring";
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.said, expected);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Shm,
                         ::testing::Values(Setting{2, "on"}, Setting{2, "off"}, Setting{3, "on"}, Setting{3, "off"},
                                           Setting{4, "on"}, Setting{4, "off"}, Setting{16, "on"}, Setting{16, "off"}),
                         [](const auto& info) {
                           return std::to_string(info.param.ranks) + "_cross_memory_" + info.param.cross_memory;
                         });

}  // namespace
}  // namespace tutti::testing::shm_test
