#include "topology/graph.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "topology/machines.h"

namespace tutti::topology::graph_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Graph graph_of(const std::string& name, const MachineOptions& options) {
  const Result<Topology> topology = machine(name, options);
  EXPECT_TRUE(topology.ok()) << topology.status().message();
  Result<Graph> graph = Graph::of(topology.value());
  EXPECT_TRUE(graph.ok()) << graph.status().message();
  return graph.take();
}

std::vector<std::string> names_of(const Graph& graph, const Route& route) {
  std::vector<std::string> names;
  for (const int vertex : route.vertices) names.push_back(graph.name_of_vertex(vertex));
  return names;
}

TEST(Graph, GpusTalkByNvswitch) {
  const Graph graph = graph_of("nvswitch", {});
  const Route& route = graph.route(0, 7);
  EXPECT_THAT(names_of(graph, route), ElementsAre("rank 0", "host 0 gpu 4 (H100 80GB)", "host 0 nvswitch 13 (NVSwitch)",
                                                  "host 0 gpu 11 (H100 80GB)", "rank 7"));
  EXPECT_EQ(route.gb_per_s, 450);
}

TEST(Graph, GpusOnPcieStayAsLowInTheTreeAsTheyCan) {
  const Graph graph = graph_of("pcie", {});
  EXPECT_THAT(names_of(graph, graph.route(0, 1)),
              ElementsAre("rank 0", "host 0 gpu 4 (A100 80GB PCIe)", "host 0 pci_switch 0 (switch0)",
                          "host 0 gpu 5 (A100 80GB PCIe)", "rank 1"));
  const Route& within = graph.route(0, 2);
  const Route& across = graph.route(0, 4);
  EXPECT_THAT(
      names_of(graph, across),
      ElementsAre("rank 0", "host 0 gpu 4 (A100 80GB PCIe)", "host 0 pci_switch 0 (switch0)", "host 0 NUMA node 0",
                  "host 0 NUMA node 1", "host 0 pci_switch 2 (switch2)", "host 0 gpu 8 (A100 80GB PCIe)", "rank 4"));
  EXPECT_EQ(across.gb_per_s, 31.5);
  EXPECT_LT(graph.route(0, 1).latency_us, within.latency_us);
  EXPECT_LT(within.latency_us, across.latency_us);
  // Two pairs that cross share the link between the sockets, and nothing of memory: GPUs do not pass through it.
  for (const int resource : across.resources) {
    EXPECT_EQ(graph.name_of_resource(resource).find("memory of host 0 NUMA"), std::string::npos);
  }
}

TEST(Graph, AcrossHostsByTheNicThatIsNearest) {
  const Graph graph = graph_of("nvswitch", {.hosts = 2, .rails = 8});
  ASSERT_EQ(graph.rails(), 8);
  ASSERT_EQ(graph.ranks(), 16);
  const Route& route = graph.route(2, 10);  // both are the third GPU of their host, beside NICs 2 and 3
  EXPECT_THAT(names_of(graph, route),
              ElementsAre("rank 2", "host 0 gpu 6 (H100 80GB)", "host 0 pci_switch 1 (switch1)", "host 0 nic 14 (ib2)",
                          "switch rail2", "host 1 nic 14 (ib2)", "host 1 pci_switch 1 (switch1)",
                          "host 1 gpu 6 (H100 80GB)", "rank 10"));
  EXPECT_EQ(route.gb_per_s, 50);
  // In a lane by the rail of the lower one, which need not be the nearest for the other.
  EXPECT_EQ(names_of(graph, graph.route(2, 10, 1)), names_of(graph, route));
  for (const auto& [from, to] : {std::pair{2, 15}, std::pair{15, 2}}) {
    EXPECT_THAT(names_of(graph, graph.route(from, to, 0)), ::testing::Contains("switch rail2"));
  }
  EXPECT_THAT(names_of(graph, graph.route(7, 10, 0)), ::testing::Contains("switch rail7"));
  EXPECT_GT(graph.route(7, 10, 0).latency_us, route.latency_us);
}

TEST(Graph, CoresTalkThroughTheirCache) {
  const Graph graph = graph_of("ethernet", {.ranks = 2});
  EXPECT_THAT(names_of(graph, graph.route(0, 1)),
              ElementsAre("rank 0", "host 0 core 0", "host 0 cache 0", "host 0 core 1", "rank 1"));
  EXPECT_EQ(graph.route(0, 1).gb_per_s, 10);  // a core's
  EXPECT_THAT(names_of(graph, graph.at_home(1)),
              ElementsAre("rank 1", "host 0 core 1", "host 0 cache 0", "host 0 NUMA node 0"));
}

TEST(Graph, NoMessagePassesThroughAThirdHost) {
  const Graph graph = graph_of("ethernet", {.hosts = 5, .ranks = 3});
  for (int a = 0; a < graph.ranks(); ++a) {
    for (int b = 0; b < graph.ranks(); ++b) {
      if (a == b) continue;
      const Route& route = graph.route(a, b);
      ASSERT_FALSE(route.vertices.empty());
      for (const int vertex : route.vertices) {
        const int host = graph.vertices()[static_cast<std::size_t>(vertex)].host;
        EXPECT_TRUE(host < 0 ? graph.host_of(a) != graph.host_of(b)
                             : host == graph.host_of(a) || host == graph.host_of(b));
      }
      // There and back are of equal length, and use none of the same edges.
      const Route& back = graph.route(b, a);
      EXPECT_EQ(back.edges.size(), route.edges.size());
      for (const int edge : route.edges) EXPECT_EQ(std::count(back.edges.begin(), back.edges.end(), edge), 0);
    }
  }
}

TEST(Graph, WhatCannotBeReachedIsNamed) {
  Topology t = machine("ethernet", {.hosts = 3}).take();
  t.links.erase(t.links.begin() + 2);
  EXPECT_THAT(Graph::of(t).status().message(), HasSubstr("hosts[2]: no link leads from hosts[0]"));
  // Host 1 can be reached from host 0 through host 2 alone, which forwards nothing.
  t.links = {{{0}, {2}, 1, 1}, {{2}, {1}, 1, 1}};
  EXPECT_THAT(Graph::of(t).status().message(),
              HasSubstr("no way leads from ranks[0] on hosts[0] to ranks[1] on hosts[1] without"));
}

TEST(Graph, HostsThatCannotReachEachOtherAreNamedWhicheverTheyAre) {
  // All can be reached from host 0; host 0 forwards nothing.
  Topology t = machine("ethernet", {.hosts = 3}).take();
  t.links = {{{0}, {1}, 1, 1}, {{0}, {2}, 1, 1}};
  EXPECT_THAT(Graph::of(t).status().message(),
              HasSubstr("no way leads from ranks[1] on hosts[1] to ranks[2] on hosts[2] without"));
  t.links.push_back({{2}, {1}, 1, 1});
  EXPECT_TRUE(Graph::of(t).ok());
  // One host is on two networks and does not join them for others; then a link does.
  t.switches = {{"left"}, {"right"}};
  const auto at = [](int host, int network) { return Link{{host}, {0, PlaceKind::network, network}, 1, 1}; };
  t.links = {at(0, 0), at(0, 1), at(1, 0), at(2, 1)};
  EXPECT_THAT(Graph::of(t).status().message(), HasSubstr("hosts[1] to ranks[2] on hosts[2]"));
  t.links.push_back({{0, PlaceKind::network, 0}, {0, PlaceKind::network, 1}, 1, 1});
  EXPECT_TRUE(Graph::of(t).ok());
}

}  // namespace
}  // namespace tutti::topology::graph_test
