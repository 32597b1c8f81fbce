// Every benchmark as a process, on Tutti: ranks as processes and as threads, exit status, table and JSON.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "perf/driver/gpu.h"
#include "tests/perf/run_program.h"

namespace tutti::perf::programs_test {
namespace {

using nlohmann::json;

class Program : public ::testing::TestWithParam<const char*> {};

TEST_P(Program, RightOnProcesses) {
  for (const char* memory : {"registered", "plain"}) {
    const Outcome run =
        run_program(GetParam(), std::string("--ranks 2 -b 0 -e 96K -i 24000 -n 2 -c 2 --memory ") + memory);
    EXPECT_EQ(run.status, 0) << run.text;
    EXPECT_NE(run.text.find("Out of bounds values : 0 OK"), std::string::npos) << run.text;
  }
}

TEST_P(Program, RightOnThreadsWithAnOddNumberOfRanks) {
  const Outcome run = run_program(GetParam(), "-t 3 -b 1 -e 40K -i 9999 -n 2 -c 1 -d double -r 2");
  EXPECT_EQ(run.status, 0) << run.text;
  EXPECT_NE(run.text.find("Out of bounds values : 0 OK"), std::string::npos) << run.text;
}

TEST_P(Program, RightOnOneRank) {
  const Outcome run = run_program(GetParam(), "-b 64 -e 1K -n 2");
  EXPECT_EQ(run.status, 0) << run.text;
}

INSTANTIATE_TEST_SUITE_P(All, Program, ::testing::ValuesIn(kPrograms),
                         [](const auto& info) { return std::string(info.param); });

TEST(Programs, EveryTypeAndOperation) {
  const Outcome run = run_program("all_reduce_perf", "--ranks 3 -b 12K -e 12K -n 1 -c 2 -d all -o all");
  EXPECT_EQ(run.status, 0) << run.text;
  EXPECT_EQ(run.text.find("skipped"), std::string::npos) << run.text;
  for (const char* op : {"mulsum", "band", "bxor"}) {
    EXPECT_NE(run.text.find(op), std::string::npos) << run.text;
  }
}

TEST(Programs, ExitStatus) {
  EXPECT_EQ(run_program("reduce_perf", "--help").status, 0);
  EXPECT_EQ(run_program("reduce_perf", "-b 5x").status, 255);
  EXPECT_EQ(run_program("reduce_perf", "--unknown").status, 6);
  EXPECT_EQ(run_program("reduce_perf", "-G 1").status, 5);
  if (gpu_name(0) == "no GPU") {
    const Outcome run = run_program("reduce_perf", "-t 2 --memory device");
    EXPECT_EQ(run.status, 5);
    EXPECT_NE(run.text.find("reduce_perf: device memory: "), std::string::npos) << run.text;
  }
  EXPECT_EQ(run_program("reduce_perf", "--ranks 2 -r 2").status, 6);
  EXPECT_EQ(run_program("reduce_perf", "--ranks 2 -b 8 -e 8 -J /no/such/folder/out.json").status, 2);
  setenv("NCCL_TESTS_MIN_BW", "1e6", 1);
  EXPECT_EQ(run_program("reduce_perf", "--ranks 2 -b 8 -e 8").status, 7) << "bandwidth below the floor";
  unsetenv("NCCL_TESTS_MIN_BW");
}

TEST(Programs, JsonHasTheKeysOfNcclTestsAndNoEnvironment) {
  setenv("TUTTI_TEST_MARK", "do-not-tell", 1);
  const std::string file = ::testing::TempDir() + "/tutti_perf_" + std::to_string(getpid()) + ".json";
  const Outcome run =
      run_program("all_reduce_perf", "--ranks 2 -b 1K -e 2K -n 4 --percentiles -I 1 --algorithm ring -J " + file);
  ASSERT_EQ(run.status, 0) << run.text;
  std::ifstream stream(file);
  const std::string text((std::istreambuf_iterator<char>(stream)), {});
  std::filesystem::remove(file);
  EXPECT_EQ(text.find("do-not-tell"), std::string::npos);
  const json report = json::parse(text);
  for (const char* key : {"version", "start_time", "args", "config", "results", "out_of_bounds",
                          "average_bus_bandwidth", "errors", "end_time"}) {
    EXPECT_TRUE(report.contains(key)) << key;
  }
  EXPECT_FALSE(report.contains("env"));
  EXPECT_EQ(report["config"]["devices"].size(), 2u);
  ASSERT_EQ(report["results"].size(), 2u);
  const json& row = report["results"][0];
  EXPECT_EQ(row["size"], 1024);
  EXPECT_EQ(row["count"], 256);
  EXPECT_EQ(row["type"], "float");
  EXPECT_EQ(row["redop"], "sum");
  EXPECT_EQ(row["root"], -1);
  EXPECT_EQ(row["algorithm"], "ring");
  EXPECT_EQ(row["out_of_place"]["nwrong"], 0);
  EXPECT_GT(row["in_place"]["time"].get<double>(), 0);
  EXPECT_EQ(row["out_of_place_per_iter"]["per_process_max_times_us"].size(), 4u);
  EXPECT_TRUE(report["out_of_bounds"]["okay"].get<bool>());
}

TEST(Programs, TableColumns) {
  const Outcome run = run_program("all_gather_perf", "--ranks 2 -b 1K -e 1K -n 2 --percentiles");
  ASSERT_EQ(run.status, 0) << run.text;
  EXPECT_NE(run.text.find("count      type   redop    root     time   algbw   busbw  #wrong      p50      p99"),
            std::string::npos)
      << run.text;
  EXPECT_NE(run.text.find("        1024           128     float    none      -1"), std::string::npos) << run.text;
}

}  // namespace
}  // namespace tutti::perf::programs_test
