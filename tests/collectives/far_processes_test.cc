// Ranks that count as being on other hosts (TUTTI_HOST), so that their data goes by a network: over this machine's own
// interfaces. A failure prints the seed; TUTTI_TEST_SEED repeats it.
#include <csignal>

#include "tests/collectives/processes.h"
#include "tests/collectives/random_programs.h"
#include "tests/collectives/transfer_programs.h"

namespace tutti::testing {
namespace {

using Hosts = std::vector<std::string>;
using Body = std::function<std::string(Communicator&)>;

const Hosts kPlacements[] = {{"a", "b"}, {"a", "b", "a"}, {"a", "a", "b", "b"}, {"a", "b", "c", "a"}};

/// Empty: there is a network.
std::string no_network() {
  const Hosts hosts{"a", "b"};
  const auto outcomes = run_processes(
      2, [](Communicator&) { return std::string(); }, {}, {}, hosts);
  const std::string& error = outcomes[0].error;
  return error.find("no network") == std::string::npos ? "" : error;
}

class Far : public ::testing::TestWithParam<Hosts> {
 protected:
  void SetUp() override {
    static const std::string missing = no_network();
    if (!missing.empty()) GTEST_SKIP() << "tutti-test: not run: " << missing;
  }
  static std::vector<Outcome> run(const Body& body, const Environment& environment = {}) {
    return run_processes(static_cast<int>(GetParam().size()), body, environment, {}, GetParam());
  }
};

TEST_P(Far, RandomPrograms) {
  const unsigned seed = program_seed();
  SCOPED_TRACE("TUTTI_TEST_SEED=" + std::to_string(seed));
  const Environment environments[] = {{}, {{"TUTTI_SCRATCH", "64K"}}};
  for (const Environment& environment : environments) {
    const auto body = [&](Communicator& comm) -> std::string {
      RandomProgram(comm, seed, true).run(100);
      return "";
    };
    expect_no_errors(run(body, environment));
  }
}

TEST_P(Far, RandomTransfers) {
  const unsigned seed = program_seed();
  SCOPED_TRACE("TUTTI_TEST_SEED=" + std::to_string(seed));
  const auto body = [&](Communicator& comm) -> std::string {
    run_transfer_programs(comm, seed, 3);
    return "";
  };
  expect_no_errors(run(body));
}

TEST_P(Far, CommunicatorsOfPartsOfTheJob) {
  const auto body = [](Communicator& comm) -> std::string {
    for (int turn = 0; turn < 3; ++turn) {
      Communicator half = comm.split(comm.rank() % 2, -comm.rank());
      int sum = 1;
      half.all_reduce(&sum, &sum, 1, DataType::i32);
      if (sum != half.size()) throw std::runtime_error("the sum is " + std::to_string(sum));
    }
    return "";
  };
  expect_no_errors(run(body));
}

TEST_P(Far, ADifferentCallIsNamedOnAllRanks) {
  const auto body = [](Communicator& comm) -> std::string {
    std::vector<float> data(1000);
    try {
      // A rank that is slow to leave this call may hear of the others' failure in it.
      comm.all_reduce(data.data(), data.data(), data.size(), DataType::f32);
      if (comm.rank() == 1) {
        comm.broadcast(data.data(), data.data(), 10, DataType::f32, 0);
      } else {
        comm.all_reduce(data.data(), data.data(), data.size(), DataType::f32);
      }
      comm.barrier();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  for (const Outcome& outcome : run(body, {{"TUTTI_TIMEOUT", "20s"}})) {
    EXPECT_EQ(outcome.error, "");
    EXPECT_NE(outcome.said.find("called all_reduce(1000 x f32, sum) as its call 2"), std::string::npos) << outcome.said;
    EXPECT_NE(outcome.said.find("called broadcast(10 x f32, root 0) as its call 2"), std::string::npos) << outcome.said;
  }
}

TEST_P(Far, ARankThatDiesIsNamedOnAllOthers) {
  const auto body = [](Communicator& comm) -> std::string {
    std::vector<float> data(100'000);
    try {
      for (int call = 0;; ++call) {
        if (comm.rank() == 1 && call == 20) ::raise(SIGKILL);
        comm.all_reduce(data.data(), data.data(), data.size(), DataType::f32);
      }
    } catch (const Error& error) {
      return error.what();
    }
  };
  const std::vector<Outcome> outcomes = run(body, {{"TUTTI_TIMEOUT", "20s"}});
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    if (rank == 1) continue;
    EXPECT_EQ(outcomes[rank].error, "");
    EXPECT_NE(outcomes[rank].said.find("rank 1 ("), std::string::npos) << outcomes[rank].said;
    EXPECT_NE(outcomes[rank].said.find("died"), std::string::npos) << outcomes[rank].said;
  }
}

std::string name_of_placement(const ::testing::TestParamInfo<Hosts>& info) {
  std::string name;
  for (const std::string& host : info.param) name += host;
  return name;
}
INSTANTIATE_TEST_SUITE_P(Placement, Far, ::testing::ValuesIn(kPlacements), name_of_placement);

}  // namespace
}  // namespace tutti::testing
