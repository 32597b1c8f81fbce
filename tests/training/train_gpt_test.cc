// The trainer as a user starts it: processes, command line, files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

namespace {

using testing::HasSubstr;

struct Outcome {
  int status = -1;
  std::string output;
};

Outcome run(const std::string& arguments) {
  const std::filesystem::path bin = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "../bin/train_gpt";
  const std::string command = bin.string() + " " + arguments + " 2>&1";
  Outcome outcome;
  std::FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 4096> chunk;
  while (const std::size_t got = std::fread(chunk.data(), 1, chunk.size(), pipe))
    outcome.output.append(chunk.data(), got);
  const int status = pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

/// A small model: these tests are about ranks, not about learning.
const std::string kSmall = " --layers 2 --heads 2 --width 32 --context 16 --batch 3 --threads 1 ";

TEST(TrainGpt, TwoRanksEqualOneProcessToTheBit) {
  const Outcome outcome = run("--ranks 2 --parallel ddp --deterministic --check --check-batch --steps 25" + kSmall);
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("check: 2 ranks and one process have the same losses (25 steps) and the same "
                                        "parameters, to the bit"));
  EXPECT_THAT(outcome.output, HasSubstr("check: 2 ranks have the losses of one process with 2 times the batch"));
}

TEST(TrainGpt, ThreeRanksThatAccumulateEqualOneProcessToTheBit) {
  const Outcome outcome = run("--ranks 3 --deterministic --accumulate 2 --check --steps 12" + kSmall);
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("check: 3 ranks and one process have the same losses (12 steps) and the same"));
}

TEST(TrainGpt, ThreeRanksInAnyOrderStayWithinTheTolerance) {
  const Outcome outcome = run("--ranks 3 --check --steps 12" + kSmall);
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output,
              HasSubstr("check: 3 ranks have the losses of one process with the gradients of 3 batches"));
}

TEST(TrainGpt, WritesMetricsOfEveryStep) {
  const std::string csv = testing::TempDir() + "tutti_train_" + std::to_string(::getpid()) + ".csv";
  const Outcome outcome = run("--steps 23 --csv " + csv + kSmall);
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  std::ifstream in(csv);
  std::string line;
  std::getline(in, line);
  EXPECT_EQ(line, "step,loss,learning_rate,gradient_norm,step_ms,wait_ms,tokens_per_s,communication_share");
  for (int step = 0; step < 23; ++step) {
    ASSERT_TRUE(std::getline(in, line)) << step;
    EXPECT_EQ(line.substr(0, line.find(',')), std::to_string(step));
  }
  EXPECT_FALSE(std::getline(in, line));
  std::remove(csv.c_str());
}

TEST(TrainGpt, ACheckOfOneRankHasNothingToAdd) {
  const Outcome outcome = run("--steps 5 --check" + kSmall);
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("check: 1 ranks and one process have the same losses (5 steps)"));
}

TEST(TrainGpt, AFileThatIsNotThereEndsAllRanksWithItsName) {
  const Outcome outcome = run("--ranks 2 --data /no/such/file --steps 5" + kSmall);
  EXPECT_EQ(outcome.status, 1) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("text: cannot read '/no/such/file'"));
}

TEST(TrainGpt, AWrongOptionIsRefused) {
  EXPECT_NE(run("--parallel magic").status, 0);
  EXPECT_NE(run("--steps 0").status, 0);
}

}  // namespace
