// What TUTTI_TOPOLOGY's file says of the ranks is what plans are made from.
#include <gmock/gmock.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "collectives/algorithms/table.h"
#include "collectives/plan/count.h"
#include "tests/collectives/processes.h"
#include "tests/topology/machines.h"

namespace tutti::testing::topology_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kRanks = 4;

/// The signals that rank 0 sends in one small hierarchical broadcast.
std::uint64_t signals_by(const std::vector<int>& hosts) {
  const plan::Plan plan =
      algorithms::find(Collective::broadcast, "hierarchical")->build({Collective::broadcast, kRanks, 0, hosts});
  return static_cast<std::uint64_t>(plan::count(plan, hosts)[0].signals);
}

std::string signals_sent(Communicator& comm) {
  std::vector<float> data(64, comm.rank() == 0 ? 1.0F : 0.0F);
  CallOptions hierarchical;
  hierarchical.algorithm = "hierarchical";
  const std::uint64_t before = comm.traffic().signals;
  comm.broadcast(data.data(), data.data(), data.size(), DataType::f32, 0, hierarchical);
  if (data[0] != 1) throw std::runtime_error("not what rank 0 has");
  return std::to_string(comm.traffic().signals - before);
}

TEST(Topology, RanksAreGroupedAsTheFileSays) {
  const std::uint64_t on_one = signals_by({});
  const std::uint64_t on_two = signals_by({0, 0, 1, 1});
  ASSERT_NE(on_one, on_two) << "this test could not tell";
  const std::vector<Outcome> plain = run_processes(kRanks, signals_sent);
  expect_no_errors(plain);
  EXPECT_EQ(plain[0].said, std::to_string(on_one));
  const std::vector<Outcome> grouped =
      run_processes(kRanks, signals_sent, {{"TUTTI_TOPOLOGY", topology::machine_path("two_small_hosts")}});
  expect_no_errors(grouped);
  EXPECT_EQ(grouped[0].said, std::to_string(on_two));
}

TEST(Topology, AFileForAnotherNumberOfRanksIsRefused) {
  const Outcome outcome = in_child(
      [] {
        Communicator::in_process(3);
        return std::string();
      },
      {{"TUTTI_TOPOLOGY", topology::machine_path("two_small_hosts")}});
  EXPECT_THAT(outcome.error, HasSubstr("says where 4 ranks are; the job has 3"));
}

TEST(Topology, AFileThatSaysNothingOfRanksServesEachHostOfTheJob) {
  const auto body = [](Communicator& comm) {
    int sum = 1;
    comm.all_reduce(&sum, &sum, 1, DataType::i32);
    return std::to_string(sum);
  };
  const Environment of_one_host{{"TUTTI_TOPOLOGY", topology::machine_path("two_core_vm")}, {"TUTTI_LOG", "info"}};
  const std::vector<Outcome> outcomes = run_processes(3, body, of_one_host, {}, {"a", "b", "a"});
  if (outcomes[0].error.find("no network") != std::string::npos) {
    GTEST_SKIP() << "tutti-test: not run: " << outcomes[0].error;
  }
  expect_no_errors(outcomes);
  EXPECT_EQ(outcomes[0].said, "3");
  const Environment of_another_job{{"TUTTI_TOPOLOGY", topology::machine_path("two_small_hosts")}};
  for (const Outcome& outcome : run_processes(3, body, of_another_job, {}, {"a", "b", "a"})) {
    EXPECT_THAT(outcome.error, HasSubstr("says where 4 ranks are; the job has 3"));
  }
  // A rank that cannot read its file is named by all.
  const Environment of_none{{"TUTTI_TOPOLOGY", "/nonexistent"}};
  for (const Outcome& outcome : run_processes(3, body, of_none, {}, {"a", "b", "a"})) {
    EXPECT_THAT(outcome.error, HasSubstr("/nonexistent"));
  }
}

/// Returns the error of each of kRanks ranks that were given these files and count as on these hosts; "": none.
std::vector<std::string> errors_of(const std::string& job, const std::vector<std::string>& files,
                                   const std::vector<std::string>& hosts) {
  std::vector<internal::ChildProcess> children;
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    const Environment environment{{"TUTTI_JOB", std::to_string(getpid()) + "." + job},
                                  {"TUTTI_SIZE", std::to_string(kRanks)},
                                  {"TUTTI_TIMEOUT", "120s"},
                                  {"TUTTI_RANK", std::to_string(rank)},
                                  {"TUTTI_HOST_ID", hosts[rank]},
                                  {"TUTTI_TOPOLOGY", files[rank]}};
    children.push_back(internal::start_child(environment, [] {
      Communicator::from_environment();
      return std::string();
    }));
  }
  std::vector<std::string> errors;
  for (const internal::ChildProcess& child : children) errors.push_back(internal::end_of(child).error);
  return errors;
}

TEST(Topology, RanksThatWereGivenDifferentFilesAreToldSo) {
  const std::string file = topology::machine_path("two_small_hosts");
  for (const std::string& error : errors_of("different", {"", "", file, ""}, {"", "", "", ""})) {
    EXPECT_THAT(error, AllOf(HasSubstr("rank 2 was started with another"), HasSubstr("TUTTI_TOPOLOGY")));
  }
}

// Between hosts the ranks make one topology before they compare anything else.
TEST(Topology, ADifferenceBetweenHostsSaysWhereAndWhat) {
  NEEDS_NETWORK();
  const std::string file = topology::machine_path("two_small_hosts");
  std::string text = topology::machine_text("two_small_hosts");
  text.replace(text.find("1.25"), 4, "12.5");
  const std::string other =
      std::filesystem::temp_directory_path() / ("tutti_other_" + std::to_string(getpid()) + ".json");
  std::ofstream(other) << text;
  const std::vector<std::string> hosts{"a", "a", "b", "b"};
  for (const std::string& error : errors_of("values", {file, file, other, other}, hosts)) {
    EXPECT_THAT(error, AllOf(HasSubstr("rank 2 (host "),
                             HasSubstr("has another topology of the job's hosts than rank 0: links[0] (host 0 to host "
                                       "1).gb_per_s: 12.5 and 1.25")));
  }
  std::filesystem::remove(other);
  for (const std::string& error : errors_of("placed", {file, file, file, ""}, hosts)) {
    EXPECT_THAT(error,
                AllOf(HasSubstr("rank 3 (host "), HasSubstr("was not given a TUTTI_TOPOLOGY that says where ranks "
                                                            "are, and rank 0 was; expected the same")));
  }
  const std::vector<std::string> errors = errors_of("failed", {file, file, "/nonexistent", file}, hosts);
  for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("/nonexistent"));
  EXPECT_THAT(errors[0], HasSubstr("rank 2 (host "));
}

}  // namespace
}  // namespace tutti::testing::topology_test
