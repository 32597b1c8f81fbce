// Ranks that get their place from the environment of the launcher: Tutti's own variables, and the launchers that this
// machine has.
#include <gmock/gmock.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/collectives/conformance.h"
#include "tests/collectives/must.h"
#include "tests/collectives/processes.h"
#include "tests/support/emulated.h"

namespace tutti::testing::environment_test {
namespace {

std::string work(Communicator& comm) {
  for (const std::size_t count : {std::size_t{5}, std::size_t{50'000}}) {
    Case c;
    c.count = count;
    check_case(comm, c);
  }
  return std::to_string(comm.rank()) + " of " + std::to_string(comm.size());
}

// What each rank runs when a launcher starts this program again: see LaunchedRank.
constexpr const char* kFilter = " --gtest_filter=LaunchedRank.* --gtest_brief=1";
constexpr const char* kMarker = "TUTTI_TEST_LAUNCHED";

bool found(const std::string& program) {
  return std::system(("command -v " + program + " >/dev/null 2>&1").c_str()) == 0;
}

/// Runs the command, which starts this program on `ranks` ranks; each must have said its rank.
void launch(const std::string& command, int ranks) {
  std::FILE* output = ::popen((command + " 2>&1").c_str(), "r");
  ASSERT_NE(output, nullptr);
  std::string text;
  char buffer[4096];
  for (std::size_t got; (got = std::fread(buffer, 1, sizeof buffer, output)) > 0;) text.append(buffer, got);
  EXPECT_EQ(::pclose(output), 0) << command << "\n" << text;
  for (int r = 0; r < ranks; ++r) {
    const std::string line = "rank " + std::to_string(r) + " of " + std::to_string(ranks);
    EXPECT_NE(text.find(line), std::string::npos) << command << "\n" << text;
  }
}

std::string self() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

TEST(LaunchedRank, Works) {
  if (std::getenv(kMarker) == nullptr) GTEST_SKIP() << "only for ranks that a launcher starts";
  Communicator comm = Communicator::from_environment();
  std::printf("rank %s\n", work(comm).c_str());
}

TEST(Environment, TuttisOwnVariables) {
  const std::vector<Outcome> outcomes = run_processes(2, work);
  expect_no_errors(outcomes);
  EXPECT_EQ(outcomes[0].said, "0 of 2");
  EXPECT_EQ(outcomes[1].said, "1 of 2");
}

TEST(Environment, AloneWithoutAny) {
  const Outcome outcome = in_child([] {
    Communicator comm = Communicator::from_environment();
    return work(comm);
  });
  EXPECT_EQ(outcome.error, "");
  EXPECT_EQ(outcome.said, "0 of 1");
}

TEST(Environment, TwoJobsAtTheSameTimeKeepApart) {
  const auto body = [](Communicator& comm) -> std::string {
    for (int i = 0; i < 20; ++i) work(comm);
    return std::to_string(comm.size());
  };
  const internal::ChildProcess other = internal::start_child({}, [&] {
    std::string text;
    for (const Outcome& outcome : run_processes(3, body)) text += outcome.error;
    return text;
  });
  expect_no_errors(run_processes(2, body));
  const Outcome outcome = internal::end_of(other);
  EXPECT_EQ(outcome.said + outcome.error, "");
}

// Scratch of another size would lie elsewhere: the first call would write into the wrong place.
TEST(Environment, RanksStartedWithOtherSettingsAreNamed) {
  for (const auto& [name, value] : Environment{{"TUTTI_SCRATCH", "1M"}, {"TUTTI_SELECTION", "all_reduce * * ring"}}) {
    std::vector<internal::ChildProcess> children;
    for (int rank = 0; rank < 3; ++rank) {
      Environment environment = {{"TUTTI_RANK", std::to_string(rank)},
                                 {"TUTTI_SIZE", "3"},
                                 {"TUTTI_JOB", "settings." + std::to_string(::getpid()) + name}};
      if (rank == 1) environment[name] = value;
      children.push_back(internal::start_child(environment, [] {
        Communicator comm = Communicator::from_environment();
        return work(comm);
      }));
    }
    for (const internal::ChildProcess& child : children) {
      const Outcome outcome = internal::end_of(child);
      EXPECT_NE(outcome.error.find("rank 1 was started with another"), std::string::npos)
          << outcome.said << outcome.error;
    }
  }
}

// There is TCP, by which the job would run a hundredth as fast, without a word.
TEST(Environment, ADeviceThatIsNotThereIsNamedWhateverOtherNetworkThereIs) {
  const Environment environment = {{"TUTTI_NETWORK", "auto"}, {"TUTTI_VERBS_DEVICES", "nosuch0"}};
  for (const Outcome& outcome : run_processes(2, work, environment, {}, {"a", "b"})) {
    EXPECT_THAT(outcome.error, ::testing::ContainsRegex("TUTTI_VERBS_DEVICES.*'nosuch0'")) << outcome.said;
  }
}

TEST(Environment, AUniqueIdPassedByHand) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const auto second = internal::start_child({}, [&] {
    UniqueId id;
    MUST(TEMP_FAILURE_RETRY(::read(ends[0], id.bytes, sizeof id.bytes)) == static_cast<ssize_t>(sizeof id.bytes));
    Communicator comm = Communicator::from_unique_id(id, 1, 2);
    return work(comm);
  });
  const auto first = internal::start_child({}, [&] {
    const UniqueId id = Communicator::make_unique_id();
    MUST(TEMP_FAILURE_RETRY(::write(ends[1], id.bytes, sizeof id.bytes)) == static_cast<ssize_t>(sizeof id.bytes));
    Communicator comm = Communicator::from_unique_id(id, 0, 2);
    return work(comm);
  });
  const Outcome a = internal::end_of(first);
  const Outcome b = internal::end_of(second);
  EXPECT_EQ(a.said + a.error, "0 of 2");
  EXPECT_EQ(b.said + b.error, "1 of 2");
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(Environment, OpenMpi) {
  NOT_EMULATED("the launcher cannot start this program");
  if (!found("mpirun.openmpi")) GTEST_SKIP() << "no mpirun.openmpi";
  launch(std::string("OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 ") + kMarker +
             "=1 mpirun.openmpi --oversubscribe --bind-to none -x " + kMarker + " -np 3 " + self() + kFilter,
         3);
}

TEST(Environment, Mpich) {
  NOT_EMULATED("the launcher cannot start this program");
  if (!found("mpiexec.hydra")) GTEST_SKIP() << "no mpiexec.hydra";
  launch(std::string(kMarker) + "=1 mpiexec.hydra -n 3 " + self() + kFilter, 3);
}

TEST(Environment, Torchrun) {
  const char* given = std::getenv("TUTTI_TEST_TORCHRUN");
  const std::string torchrun = given != nullptr ? given : "torchrun";
  if (!found(torchrun)) GTEST_SKIP() << "no torchrun (TUTTI_TEST_TORCHRUN may name one)";
  launch(std::string(kMarker) + "=1 " + torchrun + " --standalone --nproc-per-node 2 --no-python " + self() + kFilter,
         2);
}

}  // namespace
}  // namespace tutti::testing::environment_test
