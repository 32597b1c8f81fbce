// --ranks: whose exit status it gives, how it ends the others, signals, odd dispositions and streams; L1 to L3, L17.
#include "launch/launcher.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "launch/launch_local.h"
#include "tests/collectives/processes.h"
#include "tests/faults/shell.h"
#include "tests/support/emulated.h"

namespace tutti::testing::launcher_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kTwo = "$P/all_reduce_perf --ranks 2 -b 8 -e 8";

using Environment = std::map<std::string, std::string>;

Variable in(const Environment& environment) {
  return [&environment](const char* name) {
    const auto found = environment.find(name);
    return found == environment.end() ? std::string() : found->second;
  };
}

/// Each launcher's variables, whole.
const std::vector<Environment>& launches() {
  static const std::vector<Environment> all = {
      {{"TUTTI_RANK", "0"}, {"TUTTI_SIZE", "3"}},
      {{"RANK", "0"}, {"WORLD_SIZE", "3"}},
      {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "3"}},
      {{"PMI_RANK", "0"}, {"PMI_SIZE", "3"}},
      {{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "3"}, {"SLURM_STEP_ID", "0"}},
  };
  return all;
}

// A variable that is left over starts nothing, and a whole launch is a contradiction: whatever the order.
TEST(Launcher, L1EveryVariableOfEveryLauncherAloneAndInPairs) {
  for (const Environment& launch : launches()) {
    for (const int ranks : {2, 3}) {
      const Result<bool> whole = starts_ranks("--ranks", ranks, in(launch));
      ASSERT_FALSE(whole.ok());
      for (const auto& [name, value] : launch) {
        if (name != "SLURM_STEP_ID") {
          EXPECT_THAT(whole.status().message(), HasSubstr(name + "=" + value));
        }
        const Environment alone{{name, value}};
        const Result<bool> starts = starts_ranks("-t", ranks, in(alone));
        EXPECT_TRUE(starts.ok() && starts.value()) << name;
      }
    }
    Environment of_one = launch;
    for (auto& [name, value] : of_one) {
      if (value == "3") value = "1";
    }
    const Result<bool> starts = starts_ranks("--ranks", 2, in(of_one));
    EXPECT_TRUE(starts.ok() && starts.value()) << "a job of one process";
    for (const Environment& other : launches()) {
      if (&other == &launch) continue;
      for (const auto& [name, value] : other) {
        Environment both = launch;
        both[name] = value;
        EXPECT_FALSE(starts_ranks("--ranks", 2, in(both)).ok()) << name;
      }
    }
  }
}

// The order that docs/running.md promises.
TEST(Launcher, L1TheTableOfTheManualIsTheOrder) {
  std::ifstream page(TUTTI_SOURCE_FOLDER "/docs/running.md");
  std::vector<std::pair<std::string, Environment>> rows;
  for (std::string line; std::getline(page, line);) {
    if (!std::regex_search(line, std::regex(R"(^\| \d \| `[^`]+` \|)"))) continue;
    std::vector<std::string> words;
    const std::regex quoted("`([^`]+)`");
    for (std::sregex_iterator at(line.begin(), line.end(), quoted), end; at != end; ++at) words.push_back((*at)[1]);
    Environment launch;
    for (std::size_t i = 1; i < words.size(); ++i) launch[words[i]] = i == 1 ? "0" : "3";
    rows.emplace_back(words[0], launch);
  }
  ASSERT_EQ(rows.size(), 5u);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Environment all;
    for (std::size_t k = i; k < rows.size(); ++k) all.insert(rows[k].second.begin(), rows[k].second.end());
    all["MPI_LOCALNRANKS"] = "3";  // MPICH's own launcher, and not srun by MPICH's words
    const tutti::Launcher* launcher = launcher_of(in(all));
    ASSERT_NE(launcher, nullptr) << rows[i].first;
    EXPECT_EQ(launcher->name, rows[i].first);
  }
}

TEST(Launcher, L1RanksOfItsOwnAreRanks) {
  Environment own{
      {"TUTTI_LAUNCHED", "1"}, {"TUTTI_RANK", "1"}, {"TUTTI_SIZE", "2"}, {"WORLD_SIZE", "5"}, {"RANK", "4"}};
  const Result<bool> starts = starts_ranks("--ranks", 2, in(own));
  EXPECT_TRUE(starts.ok() && !starts.value());
  EXPECT_FALSE(starts_ranks("--ranks", 4, in(own)).ok());  // a program that a rank starts
}

TEST(Launcher, L1AStrayVariableOfASurroundingJob) {
  NOT_EMULATED("it starts programs");
  for (const char* stray : {"WORLD_SIZE=2", "SLURM_STEP_NUM_TASKS=1", "PMI_SIZE=1", "OMPI_COMM_WORLD_SIZE=4"}) {
    const Ran ran = run_shell(stray + std::string(" ") + kTwo);
    EXPECT_EQ(ran.status, 0) << stray << ": " << ran.text;
    EXPECT_THAT(ran.text, HasSubstr("Rank  1")) << stray;
  }
}

TEST(Launcher, L2ALaunchAroundItIsAContradiction) {
  NOT_EMULATED("it starts programs");
  const Ran ran = run_shell(std::string("RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost ") + kTwo);
  EXPECT_EQ(ran.status, 6);
  EXPECT_THAT(ran.text, HasSubstr("--ranks 2 starts ranks, and RANK=0, WORLD_SIZE=2 say that torchrun has started"));
  EXPECT_LT(ran.seconds, 18);
}

TEST(Launcher, TheFirstStatusCounts) {
  const auto of = [](const std::string& script, int ranks = 3) {
    return launch_local({.ranks = ranks}, {"/bin/sh", "-c", script});
  };
  EXPECT_EQ(of("exit 0"), 0);
  EXPECT_EQ(of("test $TUTTI_RANK != 1 || exit 7"), 7);
  EXPECT_EQ(of("test $TUTTI_RANK = 1 && exit 7; sleep 0.5; exit 9"), 7);
  EXPECT_EQ(of("test $TUTTI_RANK != 2 || kill -9 $$"), 128 + 9);
}

// Those that do not end by themselves are asked to, and killed when they do not mind; within 2 s.
TEST(Launcher, TheOthersAreEnded) {
  for (const char* other : {"exec sleep 100", "trap '' TERM; while :; do sleep 0.2; done"}) {
    const std::int64_t began = now_ns();
    EXPECT_EQ(launch_local({.ranks = 3}, {"/bin/sh", "-c", "test $TUTTI_RANK = 1 && exit 5; " + std::string(other)}),
              5);
    EXPECT_LT(static_cast<double>(now_ns() - began) * 1e-9, 20)
        << other;  // 2 s and a busy machine; they would sleep for 100 s
  }
}

TEST(Launcher, SignalsArePassedOn) {
  NOT_EMULATED("it starts programs");
  const Ran ran = run_shell(
      "out=$(mktemp); export SCRIPT='trap \"echo got; exit 3\" USR1; echo ready; while :; do sleep 0.1; done'; "
      "$P/../tests/test_faults --gtest_also_run_disabled_tests --gtest_filter=*DISABLED_RunScript* > $out & "
      "for i in $(seq 200); do [ $(grep -c ready $out) = 2 ] && break; sleep 0.1; done; "
      "kill -USR1 $!; wait $!; echo status $?; grep -c got $out; rm $out");
  EXPECT_EQ(ran.text, "status 3\n2\n");
}

// For the test above: two ranks of a script, by this program's own launcher.
TEST(Launcher, DISABLED_RunScript) { _exit(launch_local({.ranks = 2}, {"/bin/sh", "-c", std::getenv("SCRIPT")})); }

TEST(Launcher, L3OddDispositionsChangeNothing) {
  NOT_EMULATED("it starts programs");
  const std::vector<std::function<void()>> oddities = {
      [] { signal(SIGCHLD, SIG_IGN); },
      [] { signal(SIGTERM, SIG_IGN); },
      [] {
        sigset_t all;
        sigfillset(&all);
        sigprocmask(SIG_BLOCK, &all, nullptr);
      },
  };
  for (std::size_t i = 0; i < oddities.size(); ++i) {
    const Outcome outcome = in_child([&] {
      oddities[i]();
      const std::int64_t began = now_ns();
      const std::string program = programs_folder() + "/broadcast_perf";
      const int status = std::system((program + " --ranks 2 -r 99 > /dev/null 2>&1; echo $? > /dev/null").c_str());
      (void)status;
      const int wrong = launch_local({.ranks = 2}, {program, "--ranks", "2", "-r", "99"});
      const int killed = launch_local({.ranks = 2}, {"/bin/sh", "-c", "[ $TUTTI_RANK = 0 ] && exit 4; exec sleep 60"});
      const bool quick = now_ns() - began < 30'000'000'000;
      return std::to_string(wrong) + " " + std::to_string(killed) + (quick ? "" : ", slowly");
    });
    EXPECT_EQ(outcome.said, "6 4") << "oddity " << i << ": " << outcome.error;
  }
}

// What the library opens never becomes what the program prints to.
TEST(Launcher, L17ClosedStreams) {
  NOT_EMULATED("it starts programs");
  for (const char* closed : {"<&- >&-", ">&- 2>&-", "<&- >&- 2>&-", "<&-", "2>&-"}) {
    const Ran ran = run_shell(std::string("TUTTI_EXPLAIN=1 ") + kTwo + " " + closed);
    EXPECT_EQ(ran.status, 0) << closed << ": " << ran.text;
  }
}

TEST(Launcher, L11AFullDiskIsNoSuccess) {
  NOT_EMULATED("it starts programs");
  const Ran full = run_shell(std::string(kTwo) + " > /dev/full");
  EXPECT_EQ(full.status, 2) << full.text;
  EXPECT_THAT(full.text, HasSubstr("all_reduce_perf: standard output: "));
  for (const char* command : {"tutti options", "tutti --help", "tutti --version", "all_reduce_perf --help"}) {
    const Ran one = run_shell(std::string("$P/") + command + " > /dev/full");
    EXPECT_EQ(one.status, 2) << command << ": " << one.text;
    EXPECT_THAT(one.text, HasSubstr("standard output: ")) << command;
  }
}

TEST(Launcher, NoMoreProcessesCanBeHad) {
  NOT_EMULATED("it starts programs");
  if (geteuid() != 0) GTEST_SKIP() << "tutti-test: not run: needs another user to limit";
  const Ran ran =
      run_shell("prlimit --nproc=3 setpriv --reuid 65534 --clear-groups $P/all_reduce_perf --ranks 8 -b 8 -e 8");
  EXPECT_NE(ran.status, 0);
  EXPECT_THAT(ran.text, HasSubstr("Resource temporarily unavailable"));
  EXPECT_LT(ran.seconds, 18);
}

}  // namespace
}  // namespace tutti::testing::launcher_test
