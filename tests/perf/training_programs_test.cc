// The benchmarks of the training layer as programs: what they count is exact, and what they time keeps to its bounds.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/perf/run_program.h"

namespace tutti::perf::training_programs_test {
namespace {

class TrainingProgram : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* program : {"overlap_bench", "memory_bench", "step_checks_bench"}) {
      if (!std::filesystem::exists(build_folder() / "bin" / program)) GTEST_SKIP() << program << " was not built";
    }
  }
  nlohmann::json report_of(const char* program, const std::string& arguments) {
    const std::string path = ::testing::TempDir() + "tutti_" + program + std::to_string(::getpid()) + ".json";
    const Outcome run = run_program(program, arguments + " -J " + path);
    EXPECT_EQ(run.status, 0) << run.text;
    std::ifstream file(path);
    const nlohmann::json report = nlohmann::json::parse(file, nullptr, false);
    std::filesystem::remove(path);
    return report;
  }
};

// f32, P parameters, n ranks: 16 P, (8 + 8/n) P, (4 + 12/n) P and 16/n P bytes (Rajbhandari et al., "ZeRO"). The sum
// over the ranks needs no fractions. Rows that 3 ranks do not divide are padded, in parameters and in gradients.
TEST_F(TrainingProgram, MemoryIsTheFormulaToTheByte) {
  const nlohmann::json report = report_of("memory_bench", "--ranks 1 2 3 4 --layers 2 --width 32");
  const auto p = report["parameters"].get<std::uint64_t>();
  ASSERT_EQ(report["results"].size(), 16);
  for (const nlohmann::json& row : report["results"]) {
    const std::string strategy = row["strategy"];
    const auto n = row["ranks"].get<std::uint64_t>();
    const auto padding = row["padding_sum"].get<std::uint64_t>();
    const std::uint64_t formula = strategy == "ddp"     ? 16 * p * n
                                  : strategy == "zero1" ? (8 * n + 8) * p
                                  : strategy == "zero2" ? (4 * n + 12) * p
                                                        : 16 * p;
    EXPECT_GE(row["measured_sum"].get<std::uint64_t>(), formula) << row;
    EXPECT_LE(row["measured_sum"].get<std::uint64_t>(), formula + 2 * padding) << row;
    EXPECT_EQ(padding != 0, n == 3 && strategy != "ddp") << row;
  }
}

TEST_F(TrainingProgram, OverASlowLinkNoStepIsShorterThanItsCommunication) {
  const nlohmann::json report =
      report_of("overlap_bench",
                "--ranks 2 --layers 2 --width 32 --context 8 --batch 1 --sizes 0.01 1 --steps 1 --rounds 1 "
                "--relative 3");
  ASSERT_EQ(report["results"].size(), 4);
  for (const nlohmann::json& row : report["results"]) {
    const double link_ms = 1e3 * row["link_bytes"].get<double>() / row["bytes_per_second"].get<double>();
    for (const char* key : {"communication_ms", "step_ms", "blocking_ms"}) {
      EXPECT_GE(row[key].get<double>(), 0.999 * link_ms) << key << " of " << row;
    }
  }
  // 2 ranks send the gradients once in all_reduces; FSDP gathers once or twice, and reduces.
  const double bytes = report["parameter_bytes"];
  EXPECT_EQ(report["results"][0]["link_bytes"], bytes);
  EXPECT_GT(report["results"][0]["pieces"], report["results"][1]["pieces"]);
  EXPECT_EQ(report["results"][3]["link_bytes"], bytes) << "all of it in the root unit, which is gathered once";
  EXPECT_GT(report["results"][2]["link_bytes"], bytes);
  EXPECT_LE(report["results"][2]["link_bytes"], 1.5 * bytes);
}

TEST_F(TrainingProgram, StepChecksHaveARowForEachStrategy) {
  const Outcome run = run_program("step_checks_bench", "--rounds 3");
  EXPECT_EQ(run.status, 0) << run.text;
  for (const char* row : {"| DDP |", "| FSDP |", "| tensor parallel |"}) {
    EXPECT_NE(run.text.find(row), std::string::npos) << run.text;
  }
}

TEST_F(TrainingProgram, WrongUsageIsRefused) {
  EXPECT_EQ(run_program("overlap_bench", "--strategies none").status, 6);
  EXPECT_EQ(run_program("memory_bench", "--ranks 0").status, 6);
  EXPECT_EQ(run_program("step_checks_bench", "--rounds 0").status, 6);
}

}  // namespace
}  // namespace tutti::perf::training_programs_test
