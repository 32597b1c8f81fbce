// The topology as a graph, to find ways in: what a message from one rank to another passes through, how fast that is,
// and what it shares with other messages.
//
//   TUTTI_ASSIGN(const Graph graph, Graph::of(topology));
//   const Route& route = graph.route(0, 5);                // route.gb_per_s, route.latency_us, route.resources
//
// Vertices are ranks, the places where ranks are, last-level caches, NUMA nodes, devices and switches. A package, or a
// host as a whole, is its first NUMA node. Every link is two edges, one for each direction. What every message that
// touches a vertex shares (the memory of a NUMA node or of a GPU) is a capacity of that vertex. Edges and such vertices
// together are the resources.
//
// A message takes the widest way, among those the one of least latency, among those the one of fewest hops. It does not
// pass through a GPU, a core or a third host, nor leave the host when both its ends are there.
//
// What the topology does not know (0) is taken from Assumed: nominal figures of common hardware, not measured ones.
// `tutti tune` measures what it can reach.
//
// Threads: one at a time (routes are found when they are first asked for, and kept).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/status.h"
#include "topology/rails.h"
#include "topology/topology.h"

namespace tutti::topology {

/// Stands in for figures that are not known. GB/s each way, us.
struct Assumed {
  double core_gb_per_s = 10;  // a rank on the host: what its core copies
  double core_latency_us = 0.05;
  double cache_gb_per_s = 100;  // between the cores of a last-level cache and memory
  double cache_latency_us = 0.05;
  double memory_gb_per_s = 100;  // of a NUMA node
  double socket_gb_per_s = 40;   // between two NUMA nodes that are furthest from each other in their host
  double socket_latency_us = 0.1;
  double pci_gb_per_s = 25;  // PCIe 4.0 x16
  double pci_latency_us = 0.5;
  double gpu_gb_per_s = 1500;  // its memory
  double gpu_latency_us = 1;
};

enum class VertexKind : std::uint8_t { rank, core, cache, numa_node, pci_switch, nic, gpu, nvswitch, network };

struct Vertex {
  VertexKind kind = VertexKind::rank;
  int host = -1;        // -1: of the network
  int index = 0;        // of the rank, core, cache, NUMA node, device or switch in the topology
  double gb_per_s = 0;  // shared by all that touch it; 0: no limit
};

struct Edge {
  int from = 0;
  int to = 0;
  double gb_per_s = 0;
  double latency_us = 0;
};

struct Route {
  double gb_per_s = 0;         // of the narrowest resource
  double latency_us = 0;       // of all edges
  std::vector<int> vertices;   // from the first to the last
  std::vector<int> edges;      // one less
  std::vector<int> resources;  // below Graph::resources(), each once
};

inline constexpr int kAnyLane = -1;

class Graph {
 public:
  /// Errors: as check(); invalid_argument, naming both hosts, when one with ranks cannot be reached from another such
  /// one.
  static Result<Graph> of(const Topology& topology, const Assumed& assumed = {});
  /// Makes the graph of a part of a job (job.h), whose ranks keep the rails that they have in it.
  static Result<Graph> of(const Topology& topology, const Assumed& assumed, const RailShares& shares);

  const Topology& topology() const { return topology_; }
  const Assumed& assumed() const { return assumed_; }
  const std::vector<Vertex>& vertices() const { return vertices_; }
  const std::vector<Edge>& edges() const { return edges_; }
  int ranks() const { return static_cast<int>(topology_.ranks.size()); }
  int host_of(int rank) const { return topology_.ranks[static_cast<std::size_t>(rank)].host; }

  /// Between two different ranks. `lane`: across hosts only by the NICs that the two go by in that lane (rails.h),
  /// where one leads to the other; kAnyLane: by whichever are best. The reference is good until the graph goes.
  const Route& route(int from, int to, int lane = kAnyLane) const;
  /// How ranks share the rails of their hosts.
  const RailShares& shares() const { return shares_; }
  /// Returns what a rank uses when it works on memory of its own: its edge and what its place shares.
  const Route& at_home(int rank) const;
  /// Between a rank and a NIC of its host, given as that host's n-th.
  const Route& route_to_nic(int rank, int nic) const;

  /// The most NICs with a link to beyond their host that one has; 1 where none has any.
  int rails() const { return rails_; }
  /// The vertices of these NICs of a host, in the order of their first links: its rails.
  const std::vector<int>& nics_of(int host) const { return nics_[static_cast<std::size_t>(host)]; }

  /// Edges first, then vertices.
  int resources() const { return static_cast<int>(edges_.size() + vertices_.size()); }
  double gb_per_s_of(int resource) const;  // 0: no limit
  /// Whether cores and their caches alone have to do with it: a rank's edge, what leads to a cache or a NUMA node, the
  /// latter's memory.
  bool is_of_cores(int resource) const;
  /// "host 0 gpu 3 (H100) -> host 0 pci_switch 1", "memory of host 0 NUMA node 1".
  std::string name_of_resource(int resource) const;
  std::string name_of_vertex(int vertex) const;

 private:
  Graph(const Topology& topology, const Assumed& assumed, const RailShares& shares);
  int add_vertex(VertexKind kind, int host, int index, double gb_per_s = 0);
  void add_link(int a, int b, double gb_per_s, double latency_us);
  void add_host(int host);
  void join_nodes(int host);
  void add_rank(int rank);
  int numa_vertex(int host, int node) const;
  int cache_vertex(int host, int core);
  int vertex_of(const Place& place);
  Status check_reach() const;
  Status check_ways() const;
  std::set<int> networks_from(int start, const std::vector<int>& network_of) const;
  /// A way by certain NICs: their vertices on the first and the last one's host; -1: any.
  struct Nics {
    int out = -1;
    int in = -1;
    auto operator<=>(const Nics&) const = default;
  };
  Nics nics_between(int from, int to, int lane) const;
  bool may_enter(int vertex, int from, int to, const Nics& by) const;
  /// Between vertices that are not ranks; empty `vertices` where there is no way.
  const Route& way(int from, int to, const Nics& by) const;
  Route search(int from, int to, const Nics& by) const;
  void finish(Route& route) const;

  Topology topology_;
  Assumed assumed_;
  std::vector<Vertex> vertices_;
  std::vector<Edge> edges_;
  std::vector<std::vector<int>> edges_from_;              // by vertex
  std::vector<std::vector<int>> numa_, devices_;          // vertices by host and index
  std::vector<int> switches_, ranks_;                     // vertices by index
  std::map<std::tuple<VertexKind, int, int>, int> made_;  // cores and caches: (kind, host, index) -> vertex
  std::vector<std::vector<int>> nics_;
  int rails_ = 1;
  RailShares shares_;
  mutable std::map<std::tuple<int, int, Nics>, Route> ways_;
  mutable std::map<std::tuple<int, int, Nics>, Route> routes_;
};

}  // namespace tutti::topology
