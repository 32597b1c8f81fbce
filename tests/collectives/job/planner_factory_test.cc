// The costs with which the model is asked, by a job and by a program that plans for one.
#include "collectives/job/planner_factory.h"

#include <gmock/gmock.h>

#include <cstddef>

#include "collectives/job/assumed_network.h"
#include "collectives/job/networks.h"
#include "topology/graph.h"
#include "topology/job.h"
#include "topology/machines.h"

namespace tutti::planner_of_test {
namespace {

const transport::WindowSizes kSizes{.ranks = 4, .lanes = 2, .scratch_half = 4 << 20, .has_remote = true};

/// Two hosts that are one machine of two cores, with two ranks each.
topology::Topology two_on_one_machine() {
  topology::HostOfJob one;
  topology::Host& host = one.found.hosts.emplace_back();
  host.numa_nodes.emplace_back();
  host.cores = {{0, 0, {0}}, {0, 0, {1}}};
  one.machine = "both";
  return topology::of_job({one, one}, {0, 0, 1, 1}).take();
}

TEST(Costs, AreThoseOfTheWireUntilTheyAreMeasured) {
  topology::Topology here = topology::machine("ethernet", {.hosts = 2, .ranks = 2}).take();
  const topology::Topology before = here;
  const transport::WireInfo wire = assumed_network(here);
  EXPECT_EQ(wire.name, "tcp");
  const planner::CostOptions assumed = costs_of(here, nullptr, &wire, kSizes);
  EXPECT_EQ(assumed.constants.message_us, 3);
  EXPECT_EQ(assumed.inlined, wire.copied);
  EXPECT_EQ(assumed.slice, std::size_t{512} << 10);
  EXPECT_EQ(assumed.scratch_half, kSizes.scratch_half);
  planner::Table table;
  table.constants.message_us = 4;
  EXPECT_EQ(costs_of(here, &table, &wire, kSizes).constants, table.constants);
  EXPECT_EQ(here, before);
}

TEST(Costs, WhereHostsShareCoresAMessageTakesLonger) {
  const topology::Topology before = two_on_one_machine();
  const transport::WireInfo wire = assumed_network(before);
  topology::Topology here = before;
  const planner::Constants assumed = costs_of(here, nullptr, &wire, kSizes).constants;
  EXPECT_EQ(assumed.switch_us, planner::kSharedSwitchUs);
  EXPECT_EQ(assumed.message_gb_per_s, planner::kSharedMessageGbPerS);
  const double longer = topology::Graph::of(here).value().route(0, 2).latency_us -
                        topology::Graph::of(before).value().route(0, 2).latency_us;
  EXPECT_NEAR(longer, planner::kWakeUs, 1e-9);
  // What was measured there has that in it.
  planner::Table table;
  here = before;
  EXPECT_EQ(costs_of(here, &table, &wire, kSizes).constants, table.constants);
  EXPECT_EQ(here, before);
}

TEST(UsualWire, IsWhatWiresThatCanBeOpenedHereSay) {
  const transport::WireInfo by_tcp = assumed_network(topology::machine("ethernet", {.hosts = 2}).take());
  const transport::WireInfo by_verbs = assumed_network(topology::machine("pcie", {.hosts = 2}).take());
  EXPECT_EQ(by_verbs.name, "verbs");
  int opened = 0;
  for (const TriedWire& tried : try_wires("127.0.0.1")) {
    if (!tried.status.ok() || tried.name == "ucx") continue;
    const transport::WireInfo& usual = tried.name == "verbs" ? by_verbs : by_tcp;
    EXPECT_EQ(usual.name, tried.info.name);
    EXPECT_EQ(usual.alpha_us, tried.info.alpha_us);
    EXPECT_GE(usual.copied, tried.info.copied);  // some devices take less
    ++opened;
  }
  if (opened == 0) GTEST_SKIP() << "tutti-test: not run: no network at 127.0.0.1";
}

}  // namespace
}  // namespace tutti::planner_of_test
