// The file of measured costs, what it does to a topology, and how it is found.
#include "collectives/planner/table.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "topology/machines.h"

namespace tutti::planner::table_test {
namespace {

using ::testing::HasSubstr;

Table some_table() {
  Table table;
  table.measured_on = "AMD EPYC, 2 cores, ucx tcp/eth0";
  table.date = "2026-11-22 07:00 UTC";
  table.version = "0.1.0";
  table.ranks = 2;
  table.constants = {
      .call_us = 0.12, .step_us = 0.0304, .put_us = 1.5, .message_us = 4, .message_gb_per_s = 3, .switch_us = 2};
  table.constants.reduce_gb_per_s = 120;
  table.constants.slot_reuse_gb_per_s = 9;
  table.constants.copying = {{65536, 24.5}, {33554432, 8}};
  table.signal_us = 0.4;
  table.network_gb_per_s = 1.25;
  table.network_us = 30;
  return table;
}

TEST(Table, IsReadAsItWasWritten) {
  const Result<Table> table = parse_table(print(some_table()));
  ASSERT_TRUE(table.ok()) << table.status().message();
  EXPECT_EQ(table.value(), some_table());
}

TEST(Table, AnEarlierVersionsKeyIsRead) {
  std::string text = print(some_table());
  const std::string key = "slot_reuse_gb_per_s";
  text.replace(text.find(key), key.size(), "passing_gb_per_s");
  const Result<Table> table = parse_table(text);
  ASSERT_TRUE(table.ok()) << table.status().message();
  EXPECT_EQ(table.value(), some_table());
}

TEST(Table, WhatIsDamagedIsNamed) {
  const std::string good = print(some_table());
  const auto error_with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    const Result<Table> table = parse_table(text);
    return table.ok() ? "no error" : table.status().message();
  };
  EXPECT_EQ(parse_table("").status().message(), "not a JSON object");
  EXPECT_EQ(parse_table(good.substr(0, good.size() / 2)).status().message(), "not a JSON object");
  EXPECT_EQ(error_with("\"tutti_costs\": 2", "\"tutti_costs\": 1"), "tutti_costs is 1; this build reads 2");
  EXPECT_EQ(error_with("\"call_us\"", "\"call\""), "has no \"call_us\"");
  EXPECT_EQ(error_with("\"step_us\": 0.0304", "\"step_us\": -1"), "step_us is -1; expected a number from 0");
  EXPECT_EQ(error_with("\"gb_per_s\": 24.5", "\"gb_per_s\": 0"), "copying[0].gb_per_s is 0; expected a number above 0");
  EXPECT_EQ(error_with("33554432", "65536"), "copying[1].bytes is 65536; expected more than in the one before");
  EXPECT_EQ(error_with("\"latency_us\": 30.0", "\"latency_us\": \"x\""),
            "network.latency_us is \"x\"; expected a number from 0");
}

TEST(Table, IsAppliedToHostsAndToLinksThatLeaveThem) {
  topology::Topology t = topology::machine("nvswitch", {.hosts = 2, .rails = 4}).take();
  const topology::Topology before = t;
  apply(some_table(), t);
  for (std::size_t i = 0; i < t.links.size(); ++i) {
    const topology::Link& link = t.links[i];
    const bool leaves = (link.a.kind == topology::PlaceKind::network) != (link.b.kind == topology::PlaceKind::network);
    EXPECT_EQ(link.gb_per_s, leaves ? 1.25 / 4 : before.links[i].gb_per_s);
    EXPECT_EQ(link.latency_us, leaves ? 15 : before.links[i].latency_us);
  }
  EXPECT_EQ(t.hosts[1].core_gb_per_s, 8);
}

TEST(Table, CoresThatWereMeasuredTogetherHaveRoomInTheirMemory) {
  Table table = some_table();
  EXPECT_EQ(assumed_by(table).memory_gb_per_s, topology::Assumed().memory_gb_per_s);  // 2 cores, 8 GB/s each
  table.constants.copying.back().gb_per_s = 60;
  EXPECT_EQ(assumed_by(table).memory_gb_per_s, 4 * 2 * 60);
  EXPECT_EQ(assumed_by(table).cache_gb_per_s, 4 * 2 * 60);
}

TEST(Table, HasANameForEachKindOfHostAndNetwork) {
  topology::Host host;
  host.cpu_model = "AMD EPYC(tm) 7B13, 64 cores";
  host.cores.resize(2);
  EXPECT_EQ(table_name(host, ""), "amd-epyc-tm-7b13-64-cores-2-cores.json");
  EXPECT_EQ(table_name(host, "ucx tcp/eth0"), "amd-epyc-tm-7b13-64-cores-2-cores-ucx-tcp-eth0.json");
  host.cpu_model = "../../x";
  EXPECT_EQ(table_name(host, ""), "x-2-cores.json");
}

TEST(Table, IsFoundWhereItWasWritten) {
  const std::string folder = ::testing::TempDir() + "tutti_table_test_" + std::to_string(getpid());
  setenv("XDG_CACHE_HOME", folder.c_str(), 1);
  EXPECT_EQ(table_folder(), folder + "/tutti");
  EXPECT_FALSE(find_table("here.json").value());
  const std::string path = table_folder() + "/here.json";
  ASSERT_TRUE(write_table(some_table(), path).ok());
  const auto found = find_table("here.json");
  ASSERT_TRUE(found.ok() && found.value());
  EXPECT_EQ(found.value()->table, some_table());
  EXPECT_EQ(found.value()->path, path);
  // One that is damaged is told of, and does without.
  std::ofstream(path) << "{";
  ::testing::internal::CaptureStderr();
  const auto damaged = find_table("here.json");
  EXPECT_TRUE(damaged.ok() && !damaged.value());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr(path + ": not a JSON object; goes on without it"));
  setenv("XDG_CACHE_HOME", "", 1);
  setenv("HOME", "/home/user", 1);
  EXPECT_EQ(table_folder(), "/home/user/.cache/tutti");
  setenv("HOME", "here", 1);
  EXPECT_EQ(table_folder(), "");
  EXPECT_EQ(write_table(some_table(), "/proc/nowhere/x.json").message(),
            "cannot write '/proc/nowhere/x.json': No such file or directory");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tutti::planner::table_test
