#include "topology/orders.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "topology/job.h"
#include "topology/machines.h"

namespace tutti::topology::orders_test {
namespace {

using ::testing::ElementsAre;

constexpr double kNever = std::numeric_limits<double>::infinity();

Graph graph_of(const Topology& topology) {
  Result<Graph> graph = Graph::of(topology);
  EXPECT_TRUE(graph.ok()) << graph.status().message();
  return graph.take();
}

Graph graph_of(const std::string& name, const MachineOptions& options) {
  return graph_of(machine(name, options).take());
}

double around(const std::vector<int>& order, const CostOfHop& cost) {
  double sum = 0;
  for (std::size_t i = 0; i < order.size(); ++i) sum += cost(order[i], order[(i + 1) % order.size()]);
  return sum;
}

/// How often the ring goes from one group to another.
int crossings(const std::vector<int>& order, const Partition& partition) {
  std::map<int, int> group_of;
  for (std::size_t g = 0; g < partition.size(); ++g) {
    for (const int rank : partition[g]) group_of[rank] = static_cast<int>(g);
  }
  int count = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    count += group_of.at(order[i]) != group_of.at(order[(i + 1) % order.size()]) ? 1 : 0;
  }
  return count;
}

/// Hosts with devices, links and ranks as they come; some figures are not known.
Topology random_topology(std::mt19937& random) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const auto figure = [&] { return below(4) == 0 ? 0.0 : 1 + below(400) / 4.0; };
  Topology t;
  const int hosts = 1 + below(5);
  const int leaves = 1 + below(3);
  for (int s = 0; s < leaves; ++s) t.switches.push_back({"leaf" + std::to_string(s)});
  t.switches.push_back({"spine"});
  for (int s = 0; s < leaves; ++s) {
    t.links.push_back({{0, PlaceKind::network, s}, {0, PlaceKind::network, leaves}, 1 + figure(), 1});
  }
  for (int h = 0; h < hosts; ++h) {
    Host host;
    host.core_gb_per_s = figure();
    const int nodes = 1 + below(2);
    host.packages = nodes;
    int cpu = 0;
    for (int n = 0; n < nodes; ++n) {
      host.numa_nodes.push_back({0, {}, figure()});
      Cache cache{3, 1, {}};
      for (int c = 1 + below(4); c > 0; --c) {
        host.cores.push_back({n, n, {cpu}});
        cache.cpus.push_back(cpu++);
      }
      if (below(2) == 0) host.caches.push_back(cache);
      host.devices.push_back({DeviceKind::pci_switch, "p", "", "", n, -1, figure(), 0.3});
    }
    for (int d = below(8); d > 0; --d) {
      const int parent = below(nodes);
      const DeviceKind kind = below(3) == 0 ? DeviceKind::nic : DeviceKind::gpu;
      host.devices.push_back({kind, "d", "", "", parent, below(4) == 0 ? -1 : parent, figure(), 0.2, figure()});
      const int index = static_cast<int>(host.devices.size()) - 1;
      if (kind == DeviceKind::nic) {
        t.links.push_back({{h, PlaceKind::device, index}, {0, PlaceKind::network, below(leaves)}, 1 + figure(), 1});
      } else {
        t.ranks.push_back({h, PlaceKind::device, index});
        if (below(3) == 0 && index > nodes && host.devices[static_cast<std::size_t>(index - 1)].kind == kind) {
          t.links.push_back({{h, PlaceKind::device, index}, {h, PlaceKind::device, index - 1}, 100 + figure(), 0.5});
        }
      }
    }
    t.links.push_back({{h}, {0, PlaceKind::network, below(leaves)}, 1 + figure(), 10});
    for (int r = 1 + below(3); r > 0; --r) {
      t.ranks.push_back(below(2) == 0 ? Place{h} : Place{h, PlaceKind::core, below(cpu)});
    }
    t.hosts.push_back(std::move(host));
  }
  std::shuffle(t.ranks.begin(), t.ranks.end(), random);
  return t;
}

TEST(Rings, PropertiesOnRandomTopologies) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int i = 0; i < 150; ++i) {
    const Topology t = random_topology(random);
    ASSERT_TRUE(check(t).ok()) << check(t).message();
    const Graph graph = graph_of(t);
    const std::vector<Ring> all = rings(graph);
    const Groups by = groups(graph);
    const int hosts = static_cast<int>(t.hosts.size());
    ASSERT_EQ(static_cast<int>(all.size()), hosts == 1 ? 1 : graph.rails());
    for (const Ring& ring : all) {
      std::vector<int> sorted = ring.order;
      std::sort(sorted.begin(), sorted.end());
      std::vector<int> all_ranks(t.ranks.size());
      std::iota(all_ranks.begin(), all_ranks.end(), 0);
      ASSERT_EQ(sorted, all_ranks);
      EXPECT_EQ(crossings(ring.order, by.levels[static_cast<std::size_t>(by.hosts)]), hosts == 1 ? 0 : hosts);
    }
    // All rings visit the hosts in the same order.
    for (const Ring& ring : all) {
      std::vector<int> visited;
      for (const int rank : ring.order) {
        if (visited.empty() || visited.back() != graph.host_of(rank)) visited.push_back(graph.host_of(rank));
      }
      std::vector<int> first;
      for (const int rank : all[0].order) {
        if (first.empty() || first.back() != graph.host_of(rank)) first.push_back(graph.host_of(rank));
      }
      EXPECT_EQ(visited, first);
    }
    // Every level of groups holds every rank once, inside the groups of the level before.
    std::map<int, int> above;
    for (const Partition& level : by.levels) {
      std::map<int, int> here;
      for (std::size_t g = 0; g < level.size(); ++g) {
        for (const int rank : level[g]) {
          EXPECT_TRUE(here.emplace(rank, static_cast<int>(g)).second);
          if (!above.empty()) {
            EXPECT_EQ(above.at(rank), above.at(level[g].front()));
          }
        }
      }
      EXPECT_EQ(here.size(), t.ranks.size());
      above = std::move(here);
    }
  }
}

TEST(Rings, NoOtherWayIsCheaper) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int i = 0; i < 60; ++i) {
    const int n = 1 + static_cast<int>(random() % 7);
    std::vector<std::vector<double>> table(static_cast<std::size_t>(n),
                                           std::vector<double>(static_cast<std::size_t>(n)));
    for (auto& row : table) {
      for (double& cost : row) cost = static_cast<double>(random() % 10);
    }
    const CostOfHop cost = [&](int a, int b) {
      return table[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)];
    };
    const CostOfStop end = [&](int a) { return cost(a, 0); };
    const auto length = [&](const std::vector<int>& way) {
      double sum = end(way.front()) + end(way.back());
      for (std::size_t k = 1; k < way.size(); ++k) sum += cost(way[k - 1], way[k]);
      return sum;
    };
    std::vector<int> order(static_cast<std::size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    double least_way = kNever;
    double least_circle = kNever;
    do {
      least_way = std::min(least_way, length(order));
      least_circle = std::min(least_circle, n == 1 ? 0 : around(order, cost));
    } while (std::next_permutation(order.begin(), order.end()));
    EXPECT_EQ(length(cheapest_way(n, end, cost, end)), least_way);
    const std::vector<int> circle = cheapest_circle(n, cost);
    EXPECT_EQ(circle.front(), 0);
    EXPECT_EQ(n == 1 ? 0 : around(circle, cost), least_circle);
  }
}

TEST(Rings, ManyStopsOfATreeOfSwitchesAreOrderedAsWellAsCanBe) {
  // 64 stops, shuffled: 4 racks of 4 boxes of 4. Nearness 1 in a box, 10 in a rack, 100 beyond: the least is 48 hops
  // in boxes, 12 between boxes of a rack, and 4 between racks.
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  std::vector<int> place(64);
  std::iota(place.begin(), place.end(), 0);
  std::shuffle(place.begin(), place.end(), random);
  const CostOfHop cost = [&](int a, int b) {
    const int x = place[static_cast<std::size_t>(a)];
    const int y = place[static_cast<std::size_t>(b)];
    return x / 16 != y / 16 ? 100.0 : x / 4 != y / 4 ? 10.0 : 1.0;
  };
  EXPECT_EQ(around(cheapest_circle(64, cost), cost), 48 + 120 + 400);
}

TEST(Rings, GpusOnPcieCrossTheSocketsTwice) {
  const Graph graph = graph_of("pcie", {});
  EXPECT_THAT(rings(graph), ::testing::SizeIs(1));
  EXPECT_THAT(rings(graph)[0].order, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  // Ranks that lie across the sockets in turn are put together again.
  Topology t = machine("pcie", {}).take();
  const std::vector<Place> places = t.ranks;
  for (std::size_t r = 0; r < 8; ++r) t.ranks[r] = places[r % 2 * 4 + r / 2];
  const Graph mixed = graph_of(t);
  const std::vector<int> order = rings(mixed)[0].order;
  EXPECT_EQ(crossings(order, {{0, 2, 4, 6}, {1, 3, 5, 7}}), 2);
  EXPECT_EQ(crossings(order, {{0, 2}, {4, 6}, {1, 3}, {5, 7}}), 4);
}

/// Two sockets of four NUMA nodes with two cores each, as servers with four nodes in a socket are; rank r is on socket
/// r % 2, two ranks on each node. `distances`: within a socket and beyond; 0: the firmware tells none.
Topology four_nodes_in_a_socket(int within, int beyond) {
  Topology t;
  Host& host = t.hosts.emplace_back();
  host.packages = 2;
  for (int n = 0; n < 8; ++n) {
    NumaNode& node = host.numa_nodes.emplace_back();
    for (int m = 0; m < 8 && within > 0; ++m) node.distances.push_back(m == n ? 10 : m / 4 == n / 4 ? within : beyond);
    for (const int core : {2 * n, 2 * n + 1}) host.cores.push_back({n / 4, n, {core}});
  }
  for (int r = 0; r < 16; ++r) t.ranks.push_back({0, PlaceKind::core, r % 2 * 8 + r / 2});
  return t;
}

TEST(Rings, CrossTheSocketsTwiceWhereASocketHasSeveralNodes) {
  const Partition sockets{{0, 2, 4, 6, 8, 10, 12, 14}, {1, 3, 5, 7, 9, 11, 13, 15}};
  const Partition nodes{{0, 2}, {4, 6}, {8, 10}, {12, 14}, {1, 3}, {5, 7}, {9, 11}, {13, 15}};
  // As told by two kinds of servers; all alike, so that it is packages that tell; not told.
  for (const auto& [within, beyond] : {std::pair{12, 32}, {11, 21}, {20, 20}, {0, 0}}) {
    SCOPED_TRACE(std::to_string(within) + " and " + std::to_string(beyond));
    const Graph graph = graph_of(four_nodes_in_a_socket(within, beyond));
    const std::vector<int> order = rings(graph)[0].order;
    EXPECT_EQ(crossings(order, sockets), 2);
    EXPECT_EQ(crossings(order, nodes), 8);
    const Groups by = groups(graph);
    ASSERT_GE(by.levels.size(), 2u);
    EXPECT_EQ(by.levels[1], sockets);
    // And no further than two sockets of one node each are.
    EXPECT_DOUBLE_EQ(graph.route(0, 1).latency_us,
                     graph.assumed().socket_latency_us + 4 * graph.assumed().core_latency_us);
  }
}

TEST(Rings, OneForEachRailBeginningAndEndingBesideANic) {
  const Graph graph = graph_of("nvswitch", {.hosts = 2, .rails = 4});
  const std::vector<Ring> all = rings(graph);
  ASSERT_EQ(all.size(), 4u);
  for (int rail = 0; rail < 4; ++rail) {
    const std::vector<int>& order = all[static_cast<std::size_t>(rail)].order;
    EXPECT_EQ(all[static_cast<std::size_t>(rail)].lane, rail);
    // NIC k is at PCI switch k, with GPUs 2k and 2k + 1. Up goes one, and back another.
    EXPECT_EQ(order[0] / 2, rail);
    EXPECT_EQ(order[7] / 2, 3 - rail);
    EXPECT_EQ(order[8] / 2, 4 + 3 - rail);
    EXPECT_EQ(order[15] / 2, 4 + rail);
  }
  EXPECT_THAT(all[0].order, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 14, 8, 10, 11, 12, 13, 15, 9));
}

/// The rings as they are, so that a change of theirs is seen. What makes them good is in the other tests.
std::vector<std::vector<int>> orders_of(const std::string& name, const MachineOptions& options) {
  std::vector<std::vector<int>> orders;
  for (const Ring& ring : rings(graph_of(name, options))) orders.push_back(ring.order);
  return orders;
}

TEST(Rings, OfKnownMachines) {
  using Orders = std::vector<std::vector<int>>;
  EXPECT_EQ(orders_of("ethernet", {.hosts = 4}), (Orders{{0, 1, 2, 3}}));
  EXPECT_EQ(orders_of("ethernet", {.hosts = 4, .ranks = 3}), (Orders{{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}}));
  EXPECT_EQ(orders_of("uneven", {.hosts = 4}), (Orders{{0, 1, 2, 3, 4, 5, 6, 7, 8}}));
  // clang-format off
  EXPECT_EQ(orders_of("pcie", {.hosts = 2, .rails = 4}), (Orders{
      {0, 1, 2, 3, 4, 5, 6, 7, 14, 15, 12, 13, 10, 11, 8, 9},
      {2, 3, 0, 1, 6, 7, 4, 5, 12, 13, 14, 15, 8, 9, 10, 11},
      {4, 5, 6, 7, 0, 1, 2, 3, 10, 11, 8, 9, 14, 15, 12, 13},
      {6, 7, 4, 5, 2, 3, 0, 1, 8, 9, 10, 11, 12, 13, 14, 15}}));
  EXPECT_EQ(orders_of("nvswitch", {.hosts = 4, .rails = 8}), (Orders{
      {0, 1, 2, 3, 4, 5, 6, 7, 14, 8, 9, 10, 11, 12, 13, 15, 22, 16, 17, 18, 19, 20, 21, 23, 30, 24, 26, 27, 28, 29, 31, 25},
      {1, 0, 2, 3, 4, 5, 7, 6, 14, 8, 9, 10, 11, 12, 15, 13, 20, 16, 17, 18, 19, 21, 23, 22, 30, 24, 26, 27, 28, 29, 31, 25},
      {2, 0, 1, 3, 4, 6, 7, 5, 12, 8, 9, 10, 11, 13, 15, 14, 22, 16, 17, 18, 19, 20, 23, 21, 28, 24, 25, 26, 29, 30, 31, 27},
      {3, 0, 1, 2, 5, 6, 7, 4, 12, 8, 9, 10, 13, 14, 15, 11, 18, 16, 17, 19, 21, 22, 23, 20, 28, 24, 25, 26, 29, 30, 31, 27},
      {4, 0, 1, 2, 5, 6, 7, 3, 10, 8, 9, 11, 13, 14, 15, 12, 20, 16, 17, 18, 21, 22, 23, 19, 26, 24, 25, 27, 28, 30, 31, 29},
      {5, 0, 1, 3, 4, 6, 7, 2, 10, 8, 11, 12, 13, 14, 15, 9, 16, 17, 19, 20, 21, 22, 23, 18, 26, 24, 25, 27, 28, 30, 31, 29},
      {6, 0, 2, 3, 4, 5, 7, 1, 8, 9, 11, 12, 13, 14, 15, 10, 18, 16, 19, 20, 21, 22, 23, 17, 24, 25, 26, 27, 28, 29, 30, 31},
      {7, 1, 2, 3, 4, 5, 6, 0, 9, 10, 11, 12, 13, 14, 15, 8, 17, 18, 19, 20, 21, 22, 23, 16, 24, 25, 26, 27, 28, 29, 30, 31}}));
  // clang-format on
}

/// How often one of the first rings goes by a NIC, in one direction, by which one before it does.
int meetings(const Graph& graph, int lanes) {
  const auto host_of = [&](int vertex) { return graph.vertices()[static_cast<std::size_t>(vertex)].host; };
  std::set<int> used;  // edges between hosts and the network
  int meetings = 0;
  for (const Ring& ring : rings(graph)) {
    for (std::size_t i = 0; ring.lane < lanes && i < ring.order.size(); ++i) {
      const int to = ring.order[(i + 1) % ring.order.size()];
      for (const int edge : graph.route(ring.order[i], to, ring.lane).edges) {
        const Edge& e = graph.edges()[static_cast<std::size_t>(edge)];
        if (host_of(e.from) != host_of(e.to) && !used.insert(edge).second) ++meetings;
      }
    }
  }
  return meetings;
}

TEST(Rings, NoTwoMeetOnARail) {
  for (const char* name : {"nvswitch", "pcie"}) {
    for (const int hosts : {2, 3, 4}) {
      for (const int rails : {1, 2, 3, 4, 8}) {
        SCOPED_TRACE(std::string(name) + ", " + std::to_string(hosts) + " hosts, " + std::to_string(rails) + " rails");
        Topology t = machine(name, {.hosts = hosts, .rails = rails == 3 ? 4 : rails}).take();
        if (rails == 3)
          std::erase_if(t.links, [](const Link& link) { return link.b == Place{0, PlaceKind::network, 3}; });
        EXPECT_EQ(meetings(graph_of(t), rails), 0);
        // Ranks that are dealt to the hosts in turn; and those of a communicator that counts them from the end. A ring
        // does not look ahead, and so the last of many may find nothing left; plans have two.
        const std::vector<Place> places = t.ranks;
        const int ranks = static_cast<int>(places.size());
        std::vector<int> back;
        for (int r = 0; r < ranks; ++r) {
          t.ranks[static_cast<std::size_t>(r)] = places[static_cast<std::size_t>(r % hosts * 8 + r / hosts)];
          back.push_back(ranks - 1 - r);
        }
        EXPECT_EQ(meetings(graph_of(t), 4), 0);
        const RailShares shares = RailShares(host_of_rank(t)).of_members(back);
        EXPECT_EQ(meetings(Graph::of(of_members(t, back), {}, shares).take(), 4), 0);
      }
    }
  }
}

TEST(Rings, HostsAtOneSwitchFollowEachOther) {
  // Six hosts at two switches in turn.
  Topology t = machine("ethernet", {.hosts = 6}).take();
  t.switches = {{"left"}, {"right"}};
  t.links.clear();
  for (int h = 0; h < 6; ++h) {
    t.links.push_back({{h, PlaceKind::device, 0}, {0, PlaceKind::network, h % 2}, 3.125, 10});
  }
  t.links.push_back({{0, PlaceKind::network, 0}, {0, PlaceKind::network, 1}, 1, 10});
  const std::vector<int> order = rings(graph_of(t))[0].order;
  EXPECT_THAT(order, ElementsAre(0, 1, 3, 5, 2, 4));
  EXPECT_EQ(crossings(order, {{0, 2, 4}, {1, 3, 5}}), 2);
  const Groups by = groups(graph_of(t));
  EXPECT_EQ(by.hosts, 1);
  EXPECT_EQ(by.levels[0], (Partition{{0, 2, 4}, {1, 3, 5}}));
}

TEST(Groups, OfKnownMachines) {
  const Groups pcie = groups(graph_of("pcie", {.hosts = 2}));
  ASSERT_EQ(pcie.levels.size(), 3u);
  EXPECT_EQ(pcie.hosts, 0);
  EXPECT_EQ(pcie.levels[0], (Partition{{0, 1, 2, 3, 4, 5, 6, 7}, {8, 9, 10, 11, 12, 13, 14, 15}}));
  EXPECT_EQ(pcie.levels[1], (Partition{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}, {12, 13, 14, 15}}));
  EXPECT_EQ(pcie.levels[2], (Partition{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10, 11}, {12, 13}, {14, 15}}));
  EXPECT_EQ(groups(graph_of("pcie", {.hosts = 2, .rails = 4})).levels, pcie.levels);
  for (const int rails : {1, 8}) {
    const Groups nvswitch = groups(graph_of("nvswitch", {.hosts = 2, .rails = rails}));
    ASSERT_EQ(nvswitch.levels.size(), 1u);
    EXPECT_EQ(nvswitch.levels[0], pcie.levels[0]);
  }
  const Groups ethernet = groups(graph_of("ethernet", {.hosts = 4, .ranks = 2}));
  ASSERT_EQ(ethernet.levels.size(), 1u);
  EXPECT_EQ(ethernet.levels[0], (Partition{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  // Every third host has a NIC of half the speed, and so is further from all.
  const Groups uneven = groups(graph_of("uneven", {.hosts = 4}));
  EXPECT_EQ(uneven.hosts, 1);
  EXPECT_EQ(uneven.levels,
            (std::vector<Partition>{{{0, 1, 2, 3, 6, 7, 8}, {4, 5}}, {{0, 1, 2}, {3}, {4, 5}, {6, 7, 8}}}));
}

TEST(Machines, AllSizesMakeGraphsAndRings) {
  for (const std::string& name : machine_names()) {
    for (const int hosts : {1, 2, 3, 8, 64}) {
      for (const int rails : {1, 2, 4, 8}) {
        const Result<Topology> t = machine(name, {.hosts = hosts, .rails = rails});
        if (rails > 1 && (name == "ethernet" || name == "uneven")) {
          EXPECT_FALSE(t.ok());
          continue;
        }
        ASSERT_TRUE(t.ok()) << t.status().message();
        const Result<Graph> graph = Graph::of(t.value());
        ASSERT_TRUE(graph.ok()) << graph.status().message();
        EXPECT_EQ(graph.value().rails(), rails);
        const std::vector<Ring> all = rings(graph.value());
        EXPECT_EQ(all.size(), hosts == 1 ? 1u : static_cast<std::size_t>(rails));
        const Groups by = groups(graph.value());
        std::vector<int> all_ranks(t.value().ranks.size());
        std::iota(all_ranks.begin(), all_ranks.end(), 0);
        for (const Ring& ring : all) {
          std::vector<int> sorted = ring.order;
          std::sort(sorted.begin(), sorted.end());
          EXPECT_EQ(sorted, all_ranks);
          EXPECT_EQ(crossings(ring.order, by.levels[static_cast<std::size_t>(by.hosts)]), hosts == 1 ? 0 : hosts);
        }
      }
    }
  }
  EXPECT_THAT(machine("cray", {}).status().message(), ::testing::HasSubstr("there are nvswitch, pcie"));
  EXPECT_THAT(machine("pcie", {.rails = 3}).status().message(), ::testing::HasSubstr("rails is 3; expected 1, 2, 4"));
}

}  // namespace
}  // namespace tutti::topology::orders_test
