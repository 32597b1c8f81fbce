// The trainer as a user starts it: processes, command line, files.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace {

using ::testing::HasSubstr;

struct Outcome {
  int status = -1;
  std::string output;
};

std::string program() {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "../bin/train_gpt").string();
}

Outcome run_line(const std::string& command) {
  Outcome outcome;
  std::FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 4096> chunk;
  while (const std::size_t got = std::fread(chunk.data(), 1, chunk.size(), pipe))
    outcome.output.append(chunk.data(), got);
  const int status = pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

Outcome run(const std::string& arguments) { return run_line(program() + " " + arguments + " 2>&1"); }

/// A small model: these tests are about ranks, not about learning.
const std::string kSmall = " --layers 2 --heads 2 --width 32 --context 16 --batch 3 --threads 1 ";

TEST(TrainGpt, TwoRanksEqualOneProcessToTheBit) {
  const Outcome outcome = run("--ranks 2 --parallel ddp --deterministic --check --check-batch --steps 25" + kSmall);
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("check: 2 ranks and one process have the same losses (25 steps) and the same "
                                        "parameters, to the bit"));
  EXPECT_THAT(outcome.output, HasSubstr("check: 2 ranks have the losses of one process with 2 times the batch"));
}

// What the campaign of tests/chaos found: an optimiser's roundings are those of its processor's instructions.
TEST(TrainGpt, RanksOfUnlikeProcessorsAreRefused) {
  const auto line = [](int rank, const std::string& instructions) {
    return fmt::format(
        "TUTTI_JOB=unlike{} TUTTI_SIZE=2 TUTTI_TIMEOUT=20s TUTTI_RANK={} ATEN_CPU_CAPABILITY={} {} {} "
        "--parallel ddp --steps 2 2>&1",
        ::getpid(), rank, instructions, program(), kSmall);
  };
  const Outcome alike = run_line(line(0, "default") + " & " + line(1, "default"));
  EXPECT_EQ(alike.status, 0) << alike.output;
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2")) return;
  const Outcome unlike = run_line(line(0, "default") + " & " + line(1, "avx2"));
  EXPECT_NE(unlike.status, 0);
  EXPECT_THAT(unlike.output, HasSubstr("DistributedDataParallel: PyTorch calculates by AVX2 on rank 1 and by DEFAULT "
                                       "on rank 0"));
#endif
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
  const std::string csv = ::testing::TempDir() + "tutti_train_" + std::to_string(::getpid()) + ".csv";
  const std::string json = csv + ".jsonl";
  const Outcome outcome = run("--steps 23 --csv " + csv + " --json-lines " + json + kSmall);
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  std::ifstream in(csv);
  std::string line;
  std::getline(in, line);
  EXPECT_EQ(line, "step,loss,learning_rate,gradient_norm,step_ms,wait_ms,tokens_per_s,communication_share,bytes_sent");
  for (int step = 0; step < 23; ++step) {
    ASSERT_TRUE(std::getline(in, line)) << step;
    EXPECT_EQ(line.substr(0, line.find(',')), std::to_string(step));
  }
  EXPECT_FALSE(std::getline(in, line));
  std::ifstream lines(json);
  for (int step = 0; step < 23; ++step) {
    ASSERT_TRUE(std::getline(lines, line)) << step;
    EXPECT_THAT(line, ::testing::StartsWith("{\"step\":" + std::to_string(step) + ",\"loss\":"));
    EXPECT_EQ(line.back(), '}');
  }
  EXPECT_FALSE(std::getline(lines, line));
  std::remove(csv.c_str());
  std::remove(json.c_str());
}

TEST(TrainGpt, WritesThePipelinesTimeline) {
  const std::string path = ::testing::TempDir() + "tutti_timeline_" + std::to_string(::getpid()) + ".json";
  const Outcome outcome = run("--ranks 2 --parallel pipeline --steps 2 --timeline " + path + kSmall);
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  std::ifstream in(path);
  const std::string text(std::istreambuf_iterator<char>(in), {});
  EXPECT_THAT(text, HasSubstr("\"schedule\": \"1f1b\""));
  EXPECT_THAT(text, HasSubstr("\"simulated\""));
  std::remove(path.c_str());
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

/// A way to train, and what its --check must say.
struct Way {
  std::string name, arguments, verdict;
};
void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

const std::string kBits = " and one process have the same losses (6 steps) and the same parameters, to the bit";
const std::string kTolerance = " have the losses of one process with ";

class TrainGptOnAMesh : public ::testing::TestWithParam<Way> {};

// A ring sends what the formulas say, to the byte.
TEST_P(TrainGptOnAMesh, TrainsAsOneProcessAndSendsWhatTheFormulaSays) {
  const Way& way = GetParam();
  const Outcome outcome = run(way.arguments + " --algorithm ring --check --steps 6" + kSmall);
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("check: " + way.verdict)) << outcome.output;
  const std::string mark = "mean over the ranks: ";
  const std::size_t at = outcome.output.find(mark);
  ASSERT_NE(at, std::string::npos) << outcome.output;
  double formula = 0, counted = 0;
  ASSERT_EQ(std::sscanf(outcome.output.c_str() + at + mark.size(), "%lf by formula, %lf counted", &formula, &counted),
            2);
  EXPECT_EQ(formula, counted) << outcome.output;
}

INSTANTIATE_TEST_SUITE_P(
    Ways, TrainGptOnAMesh,
    ::testing::Values(
        Way{"ddp2", "--ranks 2 --parallel ddp", "2 ranks" + kBits},
        Way{"ddp4Deterministic", "--ranks 4 --deterministic", "4 ranks" + kBits},
        Way{"ddp2EveryPass", "--ranks 2 --accumulate 2 --exchange every", "2 ranks" + kTolerance},
        Way{"ddp2Fp16", "--ranks 2 --precision fp16", "2 ranks" + kBits},
        Way{"zero1", "--ranks 2 --parallel zero1 --deterministic", "2 ranks (fsdp=2)" + kBits},
        Way{"zero2", "--ranks 2 --parallel zero2", "2 ranks (fsdp=2)" + kTolerance},
        Way{"fsdp", "--ranks 2 --parallel fsdp --deterministic", "2 ranks (fsdp=2)" + kBits},
        Way{"fsdp4Bf16", "--ranks 4 --parallel fsdp --deterministic --precision bf16", "4 ranks (fsdp=4)" + kBits},
        Way{"fsdpOffload", "--ranks 2 --parallel fsdp --offload --deterministic", "2 ranks (fsdp=2)" + kBits},
        Way{"fsdpAccumulatesLast", "--ranks 2 --parallel fsdp --deterministic --accumulate 2 --exchange last",
            "2 ranks (fsdp=2)" + kBits},
        Way{"fsdpCheckpoints", "--ranks 2 --parallel fsdp --deterministic --checkpoint-activations 1",
            "2 ranks (fsdp=2)" + kBits},
        Way{"hybrid", "--ranks 4 --mesh dp=2,fsdp=2", "4 ranks (dp=2,fsdp=2)" + kTolerance},
        Way{"tensor", "--ranks 2 --parallel tensor", "2 ranks (tp=2)" + kTolerance},
        Way{"tensorSequence",
            "--ranks 2 --parallel tensor --sequence-parallel --checkpoint-activations 2 --precision bf16",
            "2 ranks (tp=2)" + kTolerance},
        Way{"ddpTensor", "--ranks 4 --mesh dp=2,tp=2", "4 ranks (dp=2,tp=2)" + kTolerance},
        Way{"fsdpTensor", "--ranks 4 --mesh fsdp=2,tp=2", "4 ranks (fsdp=2,tp=2)" + kTolerance},
        Way{"pipeline", "--ranks 2 --parallel pipeline", "2 ranks (pp=2)" + kBits},
        Way{"gpipe4", "--ranks 4 --parallel pipeline --schedule gpipe", "4 ranks (pp=4)" + kBits},
        Way{"interleavedFp16", "--ranks 2 --parallel pipeline --schedule interleaved --precision fp16",
            "2 ranks (pp=2)" + kBits},
        Way{"zeroBubble", "--ranks 2 --parallel pipeline --schedule zb-h1 --accumulate 2 --checkpoint-activations 1",
            "2 ranks (pp=2)" + kBits},
        Way{"ddpPipeline", "--ranks 4 --mesh dp=2,pp=2 --precision bf16", "4 ranks (dp=2,pp=2)" + kBits},
        Way{"tensorPipeline", "--ranks 4 --mesh tp=2,pp=2 --schedule zb-h1", "4 ranks (tp=2,pp=2)" + kTolerance}),
    ::testing::PrintToStringParamName());

TEST(TrainGpt, WhatDoesNotGoTogetherIsOneSentence) {
  const auto refusal = [](const std::string& arguments) {
    const Outcome outcome = run(arguments + " --steps 2" + kSmall);
    EXPECT_EQ(outcome.status, 1) << arguments << outcome.output;
    EXPECT_EQ(std::count(outcome.output.begin(), outcome.output.end(), '\n'), 1) << outcome.output;
    return outcome.output;
  };
  EXPECT_THAT(refusal("--ranks 4 --mesh fsdp=2,pp=2"), HasSubstr("a pipeline's stages are not sharded"));
  EXPECT_THAT(refusal("--ranks 2 --parallel ddp --offload"), HasSubstr("it goes with fsdp"));
  EXPECT_THAT(refusal("--ranks 4 --parallel ddp --mesh fsdp=4"), HasSubstr("contradict each other"));
  EXPECT_THAT(refusal("--ranks 4 --mesh tp=3"), HasSubstr("there are 4 ranks, which is not a multiple of 3"));
  EXPECT_THAT(refusal("--ranks 2 --parallel pipeline --schedule interleaved --micro-batches 3"),
              HasSubstr("schedule interleaved needs micro-batches that 2 ranks divide"));
  EXPECT_THAT(refusal("--ranks 8 --parallel pipeline"), HasSubstr("8 stages need as many layers; the model has 4"));
  EXPECT_THAT(refusal("--sequence-parallel"), HasSubstr("sequence_parallel needs tensor parallelism"));
  EXPECT_THAT(refusal("--timeline x.json"), HasSubstr("--timeline needs a pipeline; the mesh is dp=1"));
  EXPECT_THAT(refusal("--ranks 2 --parallel fsdp --backend mpich"), HasSubstr("two communicators at once"));
  EXPECT_THAT(refusal("--device cuda"), HasSubstr("use --device cpu"));
}

// Peers that are not built in are not there to be tested.
TEST(TrainGpt, RunsOnItsPeers) {
  for (const std::string backend : {"openmpi", "mpich", "gloo"}) {
    const std::string way = backend == "openmpi" ? "fsdp" : "ddp";
    const Outcome outcome = run("--ranks 2 --parallel " + way + " --check --steps 4 --backend " + backend + kSmall);
    if (outcome.output.find("its plug-in could not be opened") != std::string::npos) continue;
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("not counted by this backend"));
    EXPECT_THAT(outcome.output, HasSubstr("check: 2 ranks"));
  }
}

// A rank's error reaches all: the model's heads cannot be cut in three.
TEST(TrainGpt, AnErrorOfARankEndsAllWithItsSentence) {
  const Outcome outcome = run("--ranks 3 --parallel tensor --steps 2" + kSmall);
  EXPECT_EQ(outcome.status, 1) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("2 heads cannot be divided by 3 ranks"));
}

}  // namespace
