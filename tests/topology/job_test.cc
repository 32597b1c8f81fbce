// The topology of a job, merged from those of its hosts.
#include "topology/job.h"

#include <gmock/gmock.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "topology/graph.h"
#include "topology/machines.h"
#include "topology/orders.h"
#include "topology/text.h"

namespace tutti::topology::job_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// `cores` cores and NICs of the given names and speeds (GB/s).
Topology host(const std::string& name, int cores, const std::vector<std::pair<std::string, double>>& nics) {
  Topology t;
  Host& h = t.hosts.emplace_back();
  h.name = name;
  h.numa_nodes.push_back({std::uint64_t{1} << 30, {10}});
  for (int c = 0; c < cores; ++c) h.cores.push_back({0, 0, {c}});
  for (const auto& [nic, gb_per_s] : nics) {
    Device device{DeviceKind::nic, nic};
    device.gb_per_s = gb_per_s;
    h.devices.push_back(device);
  }
  return t;
}

TEST(Job, LinksTheNicsThatAreNamed) {
  const std::vector<HostOfJob> hosts = {{host("a", 2, {{"eth0", 1.25}, {"eth1", 0}, {"eth10", 5}}), "tcp/eth1"},
                                        {host("b", 2, {{"docker0", 9}, {"eth1", 3}}), "tcp/eth1 and more"}};
  const Topology job = of_job(hosts, {0, 0, 1}).take();
  ASSERT_EQ(job.links.size(), 2u);
  EXPECT_EQ(job.links[0].a, (Place{0, PlaceKind::device, 1}));
  EXPECT_EQ(job.links[0].gb_per_s, kNetworkGbPerS);  // the port does not tell
  EXPECT_EQ(job.links[1].a, (Place{1, PlaceKind::device, 1}));
  EXPECT_EQ(job.links[1].gb_per_s, 3);
  EXPECT_EQ(job.links[1].latency_us, kNetworkLatencyUs);
  EXPECT_THAT(host_of_rank(job), ElementsAre(0, 0, 1));
  const Graph graph = Graph::of(job).take();
  EXPECT_EQ(graph.route(0, 2).gb_per_s, kNetworkGbPerS);
  EXPECT_EQ(graph.rails(), 1);
}

TEST(Job, WhatTheNetworkSaysOfItselfComesFirst) {
  const std::vector<HostOfJob> hosts = {{host("a", 2, {{"veth0", 1.25}}), "veth0", 4, 30},
                                        {host("b", 1, {}), "veth0", 4, 30}};
  const Topology job = of_job(hosts, {1, 0, 0, 1}).take();
  const Graph graph = Graph::of(job).take();
  EXPECT_EQ(graph.route(0, 1).gb_per_s, 4);
  EXPECT_NEAR(graph.route(1, 3).latency_us, 30, 1);
  EXPECT_EQ(job.links[1].a, (Place{1, PlaceKind::host, 0}));  // has no such NIC: linked as a whole
  EXPECT_THAT(host_of_rank(job), ElementsAre(1, 0, 0, 1));
  // More ranks than cores share them in turn.
  EXPECT_EQ(job.ranks[3], (Place{1, PlaceKind::core, 0}));
  EXPECT_EQ(job.ranks[2], (Place{0, PlaceKind::core, 1}));
}

TEST(Job, RanksAreWhereTheyAreBoundTo) {
  // Two sockets; launchers bind ranks to sockets (0 to 3), to cores (4, 5), or not at all (6, 7).
  const std::vector<HostOfJob> hosts = {{host("a", 4, {})}, {host("b", 4, {})}};
  const std::vector<CpuList> cpus = {{2, 3}, {0, 1}, {2, 3}, {2, 3}, {3}, {1}, {}, {0, 1, 2, 3}};
  const Topology job = of_job(hosts, {0, 0, 0, 0, 1, 1, 1, 1}, cpus).take();
  std::vector<int> cores;
  for (const Place& place : job.ranks) cores.push_back(place.index);
  EXPECT_THAT(cores, ElementsAre(2, 0, 3, 2, 3, 1, 0, 1));
  EXPECT_TRUE(ranks_share_cores(job));
  // CPUs of another machine than the one that a file tells of.
  EXPECT_EQ(of_job(hosts, {0, 1}, {{64, 65}, {65}}).take().ranks[1], (Place{1, PlaceKind::core, 0}));
}

TEST(Job, UnevenRailsMeetAllTheSame) {
  const std::vector<HostOfJob> hosts = {{host("a", 4, {{"ib0", 25}, {"ib1", 25}}), "ib0, ib1"},
                                        {host("b", 4, {{"ib0", 25}}), "ib0"},
                                        {host("c", 4, {{"ib0", 25}, {"ib1", 25}}), "ib0, ib1"}};
  const Topology job = of_job(hosts, {0, 0, 0, 1, 2, 2}).take();
  const Graph graph = Graph::of(job).take();
  EXPECT_EQ(graph.rails(), 2);
  for (int from = 0; from < 6; ++from) {
    for (int to = 0; to < 6; ++to) {
      for (const int lane : {0, 1}) {
        if (from == to) continue;
        EXPECT_FALSE(graph.route(from, to, lane).vertices.empty()) << from << " " << to;
      }
    }
  }
  EXPECT_EQ(rings(graph).size(), 2u);
}

/// The NICs that two ranks go by in a lane: "ib2 ib2".
std::string nics_between(const Graph& graph, int from, int to, int lane) {
  std::string names;
  for (const int vertex : graph.route(from, to, lane).vertices) {
    const Vertex& v = graph.vertices()[static_cast<std::size_t>(vertex)];
    if (v.kind != VertexKind::nic) continue;
    names += (names.empty() ? "" : " ") +
             graph.topology().hosts[static_cast<std::size_t>(v.host)].devices[static_cast<std::size_t>(v.index)].name;
  }
  return names;
}

TEST(Job, RailsAreInTheOrderInWhichTheyAreNamed) {
  const HostOfJob one{host("a", 4, {{"ib0", 25}, {"ib1", 25}, {"eth0", 1}, {"ib2", 25}, {"ib3", 25}}),
                      "ib3, ib2:1 gid 3, ib1, ib0"};
  const Graph graph = Graph::of(of_job({one, one}, {0, 0, 1, 1}).take()).take();
  EXPECT_EQ(graph.rails(), 4);
  EXPECT_EQ(nics_between(graph, 0, 2, 0), "ib3 ib3");
  EXPECT_EQ(nics_between(graph, 3, 0, 1), "ib2 ib2");
  EXPECT_EQ(nics_between(graph, 1, 2, 1), "ib0 ib0");
}

// As the wire, which is the whole job's, sends them.
TEST(Job, MembersKeepTheRailsThatTheyHaveInTheJob) {
  std::vector<HostOfJob> hosts;
  for (const char* name : {"a", "b", "c"}) {
    hosts.push_back({host(name, 4, {{"ib0", 25}, {"ib1", 25}, {"ib2", 25}, {"ib3", 25}}), "ib0 ib1 ib2 ib3"});
  }
  const std::vector<int> hosts_of_ranks{0, 0, 1, 1, 2, 2};
  const auto of = [&](const std::vector<int>& members) {
    const Topology job = of_job(hosts, hosts_of_ranks).take();
    return Graph::of(of_members(job, members), {}, RailShares(host_of_rank(job)).of_members(members)).take();
  };
  // Equal places on all hosts, as for the gradients of a model that is cut within hosts.
  const Graph second = of({1, 3, 5});
  EXPECT_EQ(nics_between(second, 0, 2, 0), "ib2 ib2");
  EXPECT_EQ(nics_between(second, 2, 1, 1), "ib3 ib3");
  const Graph some = of({3, 0, 1});  // the first of them is the highest
  EXPECT_EQ(nics_between(some, 0, 1, 0), "ib0 ib0");
  EXPECT_EQ(nics_between(some, 2, 0, 1), "ib3 ib3");
  // A host with fewer gives its own share of them, of which as many are used.
  hosts[2].goes_by = "ib0 ib1";
  const Graph uneven = of({0, 1, 2, 3, 4, 5});
  EXPECT_EQ(nics_between(uneven, 1, 4, 0), "ib2 ib1");
  EXPECT_EQ(nics_between(uneven, 4, 1, 1), "ib1 ib2");
  EXPECT_EQ(nics_between(uneven, 1, 2, 1), "ib3 ib3");
}

TEST(Job, IsTheSameAfterItsPartsWereText) {
  std::vector<HostOfJob> hosts = {{host("a", 4, {{"ib0", 25}}), "ib0"}, {host("b", 2, {{"eth0", 1.25}}), "eth0"}};
  const Topology job = of_job(hosts, {0, 1, 0}).take();
  for (HostOfJob& one : hosts) one.found = parse(print(one.found)).take();
  EXPECT_EQ(of_job(hosts, {0, 1, 0}).take(), job);
  EXPECT_EQ(parse(print(job)).take(), job);
}

// Containers or namespaces: each sees all cores, and yet they are there once.
TEST(Job, HostsOfOneMachineShareItsCores) {
  const Topology two_cores = host("a", 2, {});
  const auto part = [&](const std::string& machine) {
    return HostOfJob{.found = two_cores, .goes_by = "", .machine = machine};
  };
  const Topology job = of_job({part("m"), part("n"), part("m"), part("")}, {0, 1, 2, 3}).take();
  EXPECT_EQ(job.ranks[0], (Place{0, PlaceKind::core, 0}));
  EXPECT_EQ(job.ranks[1], (Place{1, PlaceKind::core, 0}));
  EXPECT_EQ(job.ranks[2], (Place{2, PlaceKind::core, 1}));
  EXPECT_EQ(job.hosts[2].machine, "m");
  EXPECT_EQ(job.hosts[1].machine, "");  // no other host is a part of it
  EXPECT_EQ(on_machine(job, {2, PlaceKind::core, 1}), (Place{0, PlaceKind::core, 1}));
  EXPECT_EQ(on_machine(job, {1, PlaceKind::core, 1}), (Place{1, PlaceKind::core, 1}));
  EXPECT_EQ(parse(print(job)).take(), job);
  EXPECT_FALSE(ranks_share_cores(job));
  EXPECT_TRUE(ranks_share_cores(of_job({part("m"), part("n"), part("m")}, {0, 2, 0, 1}).take()));
  EXPECT_FALSE(ranks_share_cores(of_job({part(""), part(""), part("")}, {0, 2, 0, 1}).take()));
}

TEST(Job, MistakesAreNamed) {
  const HostOfJob one{host("a", 1, {}), ""};
  EXPECT_THAT(of_job({one, one}, {0, 2}).status().message(), HasSubstr("rank 1 is on host 2; the job has 2"));
  HostOfJob two = one;
  two.found.hosts.push_back(two.found.hosts.front());
  EXPECT_THAT(of_job({one, two}, {0, 1}).status().message(), HasSubstr("host 1 of the job describes 2 hosts"));
}

TEST(Job, MembersTakeTheirHostsWithThem) {
  const Topology all = machine("uneven", {.hosts = 3}).take();  // ranks 0 1 2 | 3 | 4 5
  const std::vector<int> members = {5, 2, 4};
  const Topology some = of_members(all, members);
  ASSERT_TRUE(check(some).ok()) << check(some).message();
  EXPECT_EQ(some.hosts.size(), 2u);
  EXPECT_THAT(host_of_rank(some), ElementsAre(1, 0, 1));
  const Graph before = Graph::of(all).take();
  const Graph after = Graph::of(some).take();
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 3; ++j) {
      if (i == j) continue;
      const Route& route = before.route(members[static_cast<std::size_t>(i)], members[static_cast<std::size_t>(j)]);
      EXPECT_EQ(after.route(i, j).gb_per_s, route.gb_per_s);
      EXPECT_EQ(after.route(i, j).latency_us, route.latency_us);
    }
  }
}

}  // namespace
}  // namespace tutti::topology::job_test
