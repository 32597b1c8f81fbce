// The benchmarks' command line: nccl-tests' options and ours, and what is refused with which exit status.
#include "perf/driver/settings.h"

#include <gtest/gtest.h>

namespace tutti::perf::settings_test {
namespace {

Parsed parse(std::vector<const char*> words) {
  words.insert(words.begin(), "all_reduce_perf");
  return parse_settings(static_cast<int>(words.size()), words.data());
}

Settings accepted(const std::vector<const char*>& words) {
  const Parsed parsed = parse(words);
  EXPECT_FALSE(parsed.exit.has_value()) << parsed.message;
  return parsed.settings;
}

Exit refused(const std::vector<const char*>& words) {
  const Parsed parsed = parse(words);
  EXPECT_TRUE(parsed.exit.has_value());
  EXPECT_FALSE(parsed.message.empty());
  return parsed.exit.value_or(Exit::ok);
}

TEST(Settings, DefaultsAreNcclTests) {
  const Settings s = accepted({});
  EXPECT_EQ(s.iters, 20);
  EXPECT_EQ(s.warmup_iters, 1);
  EXPECT_EQ(s.agg_iters, 1);
  EXPECT_EQ(s.run_cycles, 1);
  EXPECT_EQ(s.check, 1);
  EXPECT_EQ(s.root, 0);
  EXPECT_EQ(s.average, Average::mean);
  EXPECT_EQ(s.ops, std::vector{ReduceOp::sum});
  EXPECT_EQ(s.types, std::vector{DataType::f32});
  EXPECT_EQ(s.memory, MemoryKind::registered);
  EXPECT_EQ(s.backend, "tutti");
}

TEST(Settings, ShortOptions) {
  const Settings s =
      accepted({"-b", "1.5K", "-e", "2M",   "-f", "4",        "-n", "7",  "-m", "2", "-w", "3",      "-N", "0",
                "-c", "5",    "-o", "prod", "-d", "bfloat16", "-r", "-1", "-T", "9", "-J", "x.json", "-a", "3",
                "-u", "1",    "-C", "1",    "-S", "1",        "-I", "1",  "-K", "2", "-M", "1"});
  EXPECT_EQ(s.min_bytes, 1536u);
  EXPECT_EQ(s.max_bytes, 2u << 20);
  EXPECT_EQ(s.step_factor, 4);
  EXPECT_EQ(s.iters, 7);
  EXPECT_EQ(s.agg_iters, 2);
  EXPECT_EQ(s.warmup_iters, 3);
  EXPECT_EQ(s.run_cycles, 0);
  EXPECT_EQ(s.check, 5);
  EXPECT_EQ(s.ops, std::vector{ReduceOp::prod});
  EXPECT_EQ(s.types, std::vector{DataType::bf16});
  EXPECT_EQ(s.root, -1);
  EXPECT_EQ(s.timeout, std::chrono::seconds(9));
  EXPECT_EQ(s.json_file, "x.json");
  EXPECT_EQ(s.average, Average::max);
  EXPECT_EQ(s.unalign, 1u);
  EXPECT_TRUE(s.cpu_time);
  EXPECT_TRUE(s.timestamps);
  EXPECT_TRUE(s.per_iter);
  EXPECT_EQ(s.per_iter_skip, 2);
  EXPECT_TRUE(s.report_memory);
}

TEST(Settings, LongOptions) {
  const Settings s = accepted({"--nthreads", "3", "--minbytes", "8", "--maxbytes", "64", "--stepbytes", "8", "--op",
                               "all", "--datatype", "all", "--algorithm", "ring", "--deterministic", "--percentiles"});
  EXPECT_EQ(s.threads, 3);
  EXPECT_EQ(s.step_factor, 1) << "-i without -f means steps";
  EXPECT_EQ(s.ops.size(), static_cast<std::size_t>(kReduceOps));
  EXPECT_EQ(s.types.size(), static_cast<std::size_t>(kDataTypes));
  EXPECT_EQ(s.algorithm, "ring");
  EXPECT_TRUE(s.deterministic);
  EXPECT_TRUE(s.percentiles);
}

TEST(Settings, MemoryIsOursOrAReport) {
  EXPECT_EQ(accepted({"--memory", "plain"}).memory, MemoryKind::plain);
  EXPECT_EQ(accepted({"--memory", "registered"}).memory, MemoryKind::registered);
  EXPECT_EQ(accepted({"-R", "1"}).memory, MemoryKind::registered);
  EXPECT_EQ(accepted({"--memory", "device"}).memory, MemoryKind::device);
  EXPECT_EQ(accepted({"--memory", "device", "-G", "5"}).graph_launches, 5);
  EXPECT_TRUE(accepted({"--memory", "device", "-y", "1"}).null_stream);
  EXPECT_EQ(refused({"--memory", "device", "-y", "1", "-G", "5"}), Exit::unsupported);
  EXPECT_TRUE(accepted({"--memory", "1"}).report_memory);
  EXPECT_FALSE(accepted({"--memory", "0"}).report_memory);
}

TEST(Settings, WhatIsForGpusOnlyIsRefusedUnlessItAsksForNothing) {
  accepted({"-g", "1", "-G", "0", "-x", "0", "-D", "0", "-V", "16", "-y", "0", "-p", "1", "-z", "1"});
  EXPECT_EQ(refused({"-g", "2"}), Exit::unsupported);
  EXPECT_EQ(refused({"-G", "1"}), Exit::unsupported);
  EXPECT_EQ(refused({"-x", "1"}), Exit::unsupported);
  EXPECT_EQ(refused({"-D", "1"}), Exit::unsupported);
}

TEST(Settings, Refusals) {
  EXPECT_EQ(refused({"-b", "8x"}), Exit::bad_size);
  EXPECT_EQ(refused({"-e", "many"}), Exit::bad_size);
  EXPECT_EQ(refused({"-b", "64", "-e", "8"}), Exit::usage);
  EXPECT_EQ(refused({"-i", "0"}), Exit::usage);
  EXPECT_EQ(refused({"-b", "0", "-e", "8"}), Exit::usage);  // 0 times 2 never grows
  EXPECT_EQ(refused({"--no-such-option"}), Exit::usage);
  EXPECT_EQ(refused({"-o", "median"}), Exit::usage);
  EXPECT_EQ(refused({"-d", "float9"}), Exit::usage);
  EXPECT_EQ(refused({"-n", "0"}), Exit::usage);
  EXPECT_EQ(refused({"-a", "4"}), Exit::usage);
  EXPECT_EQ(refused({"--backend", "other"}), Exit::usage);
  EXPECT_EQ(refused({"-t", "2", "--ranks", "2"}), Exit::usage);
  EXPECT_EQ(refused({"-t", "2", "--backend", "openmpi"}), Exit::unsupported);
  EXPECT_EQ(refused({"--help"}), Exit::ok);
}

TEST(Sizes, GrowByAFactorOrAStep) {
  EXPECT_EQ(row_sizes(accepted({"-b", "8", "-e", "40", "-f", "2"})), (std::vector<std::size_t>{8, 16, 32}));
  EXPECT_EQ(row_sizes(accepted({"-b", "8", "-e", "40", "-i", "16"})), (std::vector<std::size_t>{8, 24, 40}));
  EXPECT_EQ(row_sizes(accepted({"-b", "1G"})), (std::vector<std::size_t>{1u << 30}))
      << "-b alone may pass the default -e";
  EXPECT_EQ(row_sizes(accepted({"-b", "0", "-e", "0"})), (std::vector<std::size_t>{0}));
  EXPECT_EQ(row_sizes(accepted({"-b", "0", "-e", "8", "-i", "4"})), (std::vector<std::size_t>{0, 4, 8}));
}

}  // namespace
}  // namespace tutti::perf::settings_test
