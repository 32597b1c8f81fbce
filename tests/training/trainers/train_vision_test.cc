// train_vision as a user starts it: processes, command line, files; and a run that is saved and taken up again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/training/data/support.h"
#include "training/data/synthetic.h"

namespace tutti::training::train_vision_test {
namespace {

using ::testing::HasSubstr;

struct Outcome {
  int status = -1;
  std::string output;
};

Outcome run(const std::string& arguments) {
  const std::filesystem::path bin =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "../bin/train_vision";
  const std::string command = bin.string() + " " + arguments + " 2>&1";
  Outcome outcome;
  std::FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 4096> chunk;
  while (const std::size_t got = std::fread(chunk.data(), 1, chunk.size(), pipe)) {
    outcome.output.append(chunk.data(), got);
  }
  const int status = pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

void expect_good(const std::string& arguments, const std::vector<std::string>& texts) {
  const Outcome outcome = run(arguments);
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  for (const std::string& text : texts) EXPECT_THAT(outcome.output, HasSubstr(text));
}

/// Small: these tests are about ranks, not about learning.
const std::string kSmall = " --synthetic digits --images 50 --test-images 20 --epochs 2 --batch 8 --threads 1 ";
const std::string kResNet = kSmall + "--width 4 ";
const std::string kVit = kSmall + "--model vit --width 16 --depth 2 ";

TEST(TrainVision, ResNetOnTwoRanksEqualsOneProcessToTheBit) {
  expect_good("--ranks 2 --check" + kResNet,
              {"check: 2 ranks and one process have the same losses (16), parameters and buffers, to the bit",
               "rank 0 sent 20576 bytes in each backward; theory: 2(n-1)/n of the gradients' 20568 and 8(n-1): 20576",
               "test accuracy"});
}

// 50 samples on 3 ranks of 8 rows: steps of 24, 24 and 2, in the last of which rank 2 has none.
TEST(TrainVision, RanksThatRunOutEqualOneProcessToTheBit) {
  expect_good("--ranks 3 --check --end uneven" + kResNet,
              {"check: 3 ranks and one process have the same losses (18), parameters and buffers, to the bit"});
}

TEST(TrainVision, OtherEndsOfAnEpochEqualOneProcessToTheBit) {
  for (const std::string end : {"pad", "drop"}) {
    expect_good("--ranks 3 --check --end " + end + kResNet, {"check: 3 ranks and one process have the same losses"});
  }
}

TEST(TrainVision, VitUnderDdpEqualsOneProcessToTheBit) {
  expect_good("--ranks 2 --check" + kVit, {"check: 2 ranks and one process have the same losses"});
}

/// 50 samples on 2 ranks, 2 x 8 rows each: steps of 32 and 18, in the last of which the second micro-batch has a row.
TEST(TrainVision, AccumulationAndShortTypesEqualOneProcessToTheBit) {
  for (const std::string how : {"--accumulate 2", "--accumulate 2 --precision bf16", "--precision fp16"}) {
    expect_good("--ranks 2 --check " + how + kResNet, {"check: 2 ranks and one process have the same losses"});
  }
  expect_good("--ranks 2 --parallel fsdp --accumulate 2 --precision fp16 --check" + kVit,
              {"check: 2 ranks and one process have the same losses"});
  expect_good("--ranks 2 --parallel pipeline --precision bf16 --check" + kVit,
              {"check: 2 ranks and one process have the same losses"});
}

TEST(TrainVision, WhatDoesNotGoTogetherIsOneSentence) {
  const auto refusal = [](const std::string& arguments) {
    const Outcome outcome = run(arguments + kVit);
    EXPECT_EQ(outcome.status, 1) << outcome.output;
    return outcome.output;
  };
  EXPECT_THAT(refusal("--device cuda"), HasSubstr("use --device cpu"));
  EXPECT_THAT(refusal("--ranks 2 --parallel pipeline --accumulate 2"), HasSubstr("expected --micro-batches"));
  EXPECT_THAT(refusal("--ranks 2 --parallel pipeline --precision fp16"), HasSubstr("expected bf16 or fp32"));
}

TEST(TrainVision, BothModelsUnderFsdpEqualOneProcessToTheBit) {
  expect_good("--ranks 2 --parallel fsdp --check" + kResNet,
              {"check: 2 ranks and one process have the same losses", "rank 0 holds"});
  expect_good("--ranks 3 --parallel fsdp --end pad --check" + kVit, {"check: 3 ranks and one process have the same"});
}

// 50 samples in 4 micro-batches of 8 rows: the second step of an epoch has 4 rows in each, so shapes change.
TEST(TrainVision, VitAsAPipelineEqualsOneProcessToTheBit) {
  expect_good("--ranks 2 --parallel pipeline --check" + kVit,
              {"check: 2 ranks and one process have the same losses (4), parameters and buffers, to the bit",
               "1f1b with 4 micro-batches, idle share of each rank"});
}

TEST(TrainVision, EveryScheduleEqualsOneProcessToTheBit) {
  for (const std::string schedule : {"gpipe", "interleaved --stages-per-rank 2", "zb-h1"}) {
    expect_good("--ranks 2 --parallel pipeline --end pad --check --patch 14 --schedule " + schedule + kVit,
                {"check: 2 ranks and one process have the same losses (4)"});
  }
}

TEST(TrainVision, ReadsFoldersOfBothLayouts) {
  const TempFolder mnist, cifar;
  write_mnist(synthetic_digits(40, 1), mnist / "train-images-idx3-ubyte", mnist / "train-labels-idx1-ubyte");
  write_mnist(synthetic_digits(10, 2), mnist / "t10k-images-idx3-ubyte", mnist / "t10k-labels-idx1-ubyte");
  write_cifar10(synthetic_shapes(30, 1), cifar / "data_batch_1.bin");
  write_cifar10(synthetic_shapes(25, 2), cifar / "data_batch_4.bin");
  write_cifar10(synthetic_shapes(10, 3), cifar / "test_batch.bin");
  const std::string options = kResNet + "--data ";
  expect_good(options + mnist.path(), {"40 images (MNIST in " + mnist.path(), "of 10 images"});
  expect_good(options + cifar.path(), {"55 images (CIFAR-10 in " + cifar.path(), "of 10 images"});
}

TEST(TrainVision, WhatIsWrongWithAFolderIsNamed) {
  const TempFolder folder;
  const std::string options = kResNet + "--data " + folder.path();
  const auto expect_error = [&](const std::string& text) {
    const Outcome outcome = run(options);
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.output, HasSubstr(text));
  };
  expect_error("images in '" + folder.path() + "': neither train-images-idx3-ubyte (MNIST) nor data_batch_1.bin");
  write_cifar10(synthetic_shapes(5, 1), folder / "data_batch_1.bin");
  expect_error(folder / "test_batch.bin" + "': cannot be opened");
}

TEST(TrainVision, WritesMetricsOfEveryStep) {
  const TempFolder folder;
  expect_good("--ranks 2 --csv " + folder / "steps.csv" + " --json-lines " + folder / "steps.json" + kResNet,
              {"step 8/8"});
  std::ifstream in(folder / "steps.csv");
  std::string line;
  std::getline(in, line);
  EXPECT_THAT(line, ::testing::StartsWith("step,loss,learning_rate,"));
  for (int step = 0; step < 8; ++step) {  // 16, 16, 16 and 2 samples in each epoch
    ASSERT_TRUE(std::getline(in, line)) << step;
    EXPECT_THAT(line, ::testing::StartsWith(std::to_string(step) + ","));
  }
  EXPECT_FALSE(std::getline(in, line));
  std::ifstream json(folder / "steps.json");
  EXPECT_TRUE(std::getline(json, line));
  EXPECT_THAT(line, HasSubstr("\"images_per_s\":"));
}

TEST(TrainVision, ChoicesThatDoNotFitAreNamed) {
  const auto expect_error = [&](const std::string& options, const std::string& text) {
    const Outcome outcome = run(options);
    EXPECT_EQ(outcome.status, 1) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(text));
  };
  expect_error("--ranks 2 --parallel pipeline" + kResNet, "--model resnet is no list of layers");
  expect_error("--ranks 2 --parallel pipeline --end uneven" + kVit, "expected drop or pad");
  expect_error(kVit + "--patch 5", "--model vit: vit: side 28 is not a multiple of patch 5");
  expect_error(kVit + "--ranks 2 --parallel pipeline --schedule interleaved --stages-per-rank 3", "4 layers");
  EXPECT_NE(run("--model magic").status, 0);
}

}  // namespace
}  // namespace tutti::training::train_vision_test
