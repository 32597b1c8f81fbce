// The same benchmarks on Open MPI, MPICH and Gloo, where they were built.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <tuple>

#include "tests/perf/run_program.h"

namespace tutti::perf::baselines_test {
namespace {

class Baseline : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  void SetUp() override {
    const std::string file = std::string("libtutti_baseline_") + backend() + ".so";
    if (!std::filesystem::exists(build_folder() / "lib" / file)) GTEST_SKIP() << backend() << " was not built";
  }
  const char* program() const { return std::get<0>(GetParam()); }
  const char* backend() const { return std::get<1>(GetParam()); }
};

TEST_P(Baseline, RightOnTwoRanks) {
  const Outcome run = run_program(program(), std::string("--ranks 2 -b 0 -e 64K -i 20000 -n 2 -c 2 -r 1 --memory plain "
                                                         "--backend ") +
                                                 backend());
  EXPECT_EQ(run.status, 0) << run.text;
  EXPECT_NE(run.text.find("Out of bounds values : 0 OK"), std::string::npos) << run.text;
  EXPECT_NE(run.text.find(std::string("  ") + backend() + "\n"), std::string::npos) << "another backend ran\n"
                                                                                    << run.text;
}

INSTANTIATE_TEST_SUITE_P(
    All, Baseline, ::testing::Combine(::testing::ValuesIn(kPrograms), ::testing::Values("openmpi", "mpich", "gloo")),
    [](const auto& info) { return std::string(std::get<0>(info.param)) + "_" + std::get<1>(info.param); });

TEST(Baselines, WhatTheyLackIsASentenceAndExitStatus5) {
  for (const char* backend : {"openmpi", "gloo"}) {
    if (!std::filesystem::exists(build_folder() / "lib" / (std::string("libtutti_baseline_") + backend + ".so")))
      continue;
    const Outcome run =
        run_program("all_reduce_perf", std::string("--ranks 2 -b 8 -e 8 -d bfloat16 --backend ") + backend);
    EXPECT_EQ(run.status, 5) << run.text;
    EXPECT_NE(run.text.find("all_reduce of bf16 is not supported"), std::string::npos) << run.text;
  }
}

TEST(Baselines, BitsAreCombinedByMpiAndRefusedByGloo) {
  for (const char* backend : {"openmpi", "mpich", "gloo"}) {
    if (!std::filesystem::exists(build_folder() / "lib" / (std::string("libtutti_baseline_") + backend + ".so")))
      continue;
    for (const char* op : {"band", "bor", "bxor"}) {
      const Outcome run = run_program("all_reduce_perf", std::string("--ranks 2 -b 4K -e 4K -n 1 -c 1 -d int32 -o ") +
                                                             op + " --backend " + backend);
      const bool gloo = backend == std::string("gloo");
      EXPECT_EQ(run.status, gloo ? 5 : 0) << run.text;
      const std::string refusal = std::string("all_reduce of i32 with ") + op + " is not supported";
      EXPECT_NE(run.text.find(gloo ? refusal : "Out of bounds values : 0 OK"), std::string::npos) << run.text;
    }
  }
}

/// A program with backend nccl, whose library is looked for in `folder` first. A GPU, if there is one, is hidden.
Outcome run_on_nccl_in(const std::filesystem::path& folder, const std::string& program, const std::string& arguments) {
  setenv("LD_LIBRARY_PATH", folder.c_str(), 1);
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  Outcome run = run_program(program, arguments + " --backend nccl");
  unsetenv("LD_LIBRARY_PATH");
  unsetenv("CUDA_VISIBLE_DEVICES");
  return run;
}

// Of Tutti's own libnccl.so.2, on host memory: what is tested is the plug-in.
TEST(Baselines, NcclIsRightOnTwoRanks) {
  const std::filesystem::path ours = build_folder() / "nccl" / "as_nccl";
  for (const char* program : kPrograms) {
    const Outcome run = run_on_nccl_in(ours, program, "--ranks 2 -b 0 -e 64K -i 20000 -n 2 -c 2 -r 1");
    EXPECT_EQ(run.status, 0) << run.text;
    EXPECT_NE(run.text.find("Out of bounds values : 0 OK"), std::string::npos) << run.text;
    EXPECT_NE(run.text.find("  nccl\n"), std::string::npos) << "another backend ran\n" << run.text;
  }
  for (const char* how : {"-d all -o all", "-d float -o mulsum"}) {
    const Outcome run = run_on_nccl_in(ours, "all_reduce_perf", std::string("--ranks 3 -b 4K -e 4K -n 1 -c 1 ") + how);
    EXPECT_EQ(run.status, 0) << run.text;
    EXPECT_NE(run.text.find("Out of bounds values : 0 OK"), std::string::npos) << run.text;
  }
}

TEST(Baselines, NcclThatCannotServeIsASentence) {
  const std::string arguments = "--ranks 2 -b 8 -e 8";
  const std::filesystem::path ours = build_folder() / "nccl" / "as_nccl";
  Outcome run = run_on_nccl_in(ours, "all_reduce_perf", "--ranks 2 -b 8 -e 8 -d int32 -o bxor");
  EXPECT_EQ(run.status, 5) << run.text;
  EXPECT_NE(run.text.find("backend nccl: all_reduce of i32 with bxor is not supported"), std::string::npos) << run.text;
  if (const std::filesystem::path dummy = build_folder() / "tests" / "nccl_dummy"; std::filesystem::exists(dummy)) {
    run = run_on_nccl_in(dummy, "all_reduce_perf", arguments);
    EXPECT_EQ(run.status, 5) << run.text;
    EXPECT_NE(run.text.find("expected 2.28 or newer"), std::string::npos) << run.text;
  }
  // NVIDIA's own, where the build has found its header.
  const std::filesystem::path real = TUTTI_NCCL_LIBRARY_FOLDER;
  if (!std::filesystem::exists(real / "libnccl.so.2")) return;
  run = run_on_nccl_in(real, "all_reduce_perf", arguments);
  EXPECT_EQ(run.status, 5) << run.text;
  EXPECT_NE(run.text.find("backend nccl: NCCL works on GPU memory only: "), std::string::npos) << run.text;
}

/// On so many GPUs that are none (nccl/fake_libcuda.cc), with an NCCL that refuses what NVIDIA's does
/// (nccl/fake_nccl.cc). Tutti's own calls of device memory would be served by the fake GPUs too: `text` says which
/// backend ran.
class NcclOnGpus : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(folder_)) GTEST_SKIP() << "there are no fake GPUs in this build";
  }
  Outcome run(int gpus, const std::string& program, const std::string& arguments) const {
    setenv("LD_LIBRARY_PATH", folder_.c_str(), 1);
    setenv("FAKE_GPUS", std::to_string(gpus).c_str(), 1);
    Outcome run = run_program(program, arguments + " --backend nccl");
    unsetenv("LD_LIBRARY_PATH");
    unsetenv("FAKE_GPUS");
    return run;
  }

 private:
  const std::filesystem::path folder_ = build_folder() / "tests" / "perf_fakes";
};

TEST_F(NcclOnGpus, EveryProgramMeasuresDeviceMemory) {
  for (const char* program : kPrograms) {
    const Outcome run = this->run(2, program, "--ranks 2 -b 0 -e 64K -i 20000 -n 2 -c 2 -r 1 --memory device");
    EXPECT_EQ(run.status, 0) << run.text;
    EXPECT_NE(run.text.find("Out of bounds values : 0 OK"), std::string::npos) << run.text;
    EXPECT_NE(run.text.find("  nccl\n"), std::string::npos) << "another backend ran\n" << run.text;
    EXPECT_NE(run.text.find("GPU 1 (Fake GPU)"), std::string::npos) << run.text;
  }
}

TEST_F(NcclOnGpus, GraphsTimesAndOperations) {
  for (const char* how :
       {"-b 8 -e 8K -f 32 -G 2 --percentiles", "-b 8 -e 8K -f 32 --time 0.01", "-b 4K -e 4K -d all -o all"}) {
    const Outcome run = this->run(3, "all_reduce_perf", std::string("--ranks 3 -n 2 -c 1 --memory device ") + how);
    EXPECT_EQ(run.status, 0) << run.text;
    EXPECT_NE(run.text.find("Out of bounds values : 0 OK"), std::string::npos) << run.text;
  }
}

TEST_F(NcclOnGpus, HostMemoryGoesByWayOfTheGpu) {
  for (const char* program : kPrograms) {
    const Outcome run = this->run(2, program, "--ranks 2 -b 0 -e 64K -i 20000 -n 2 -c 2 -r 1");
    EXPECT_EQ(run.status, 0) << run.text;
    EXPECT_NE(run.text.find("Out of bounds values : 0 OK"), std::string::npos) << run.text;
  }
}

TEST_F(NcclOnGpus, MoreRanksThanGpusAreASentence) {
  const Outcome run = this->run(1, "all_reduce_perf", "--ranks 2 -b 8 -e 8 -T 20 --memory device");
  EXPECT_EQ(run.status, 2) << run.text;
  EXPECT_NE(run.text.find("backend nccl: ncclCommInitRank: "), std::string::npos) << run.text;
  EXPECT_NE(run.text.find("Duplicate GPU"), std::string::npos) << run.text;
}

TEST(Baselines, AMissingPlugInIsASentence) {
  setenv("TUTTI_BASELINE_PATH", "/no/such/folder", 1);
  const Outcome run = run_program("all_reduce_perf", "--ranks 2 -b 8 -e 8 --backend gloo");
  unsetenv("TUTTI_BASELINE_PATH");
  EXPECT_EQ(run.status, 5) << run.text;
  EXPECT_NE(run.text.find("its plug-in could not be opened"), std::string::npos) << run.text;
}

}  // namespace
}  // namespace tutti::perf::baselines_test
