// The topology as a graph, to find routes: the links and memories that a message from one rank to another uses, their
// speed, and which of them it shares with other messages.
//
//   TUTTI_ASSIGN(const Graph graph, Graph::of(topology));
//   const Route& route = graph.route(0, 5);                // route.gb_per_s, route.latency_us, route.resources
//
// How: vertices are ranks, the places of ranks, last-level caches, NUMA nodes, devices and switches. A package, or a
// host as a whole, is its first NUMA node. Every link is two edges, one for each direction. The memory of a NUMA node
// or of a GPU, which all messages that touch it share, is a capacity of its vertex. Edges and such vertices are the
// resources.
//
// A message takes the widest way; among equally wide ones the one of least latency, then of fewest hops. It does not
// pass through a GPU, a core or a third host, nor leave the host if both its ends are there.
//
// Unknown figures (0) are replaced by those of Assumed: nominal figures of common hardware, not measured ones.
// `tutti tune` measures the figures that it can reach.
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
#include "topology/graph_parts.h"
#include "topology/rails.h"
#include "topology/topology.h"

namespace tutti::topology {

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
  /// Errors: as check(); invalid_argument, naming both hosts, if a host with ranks cannot be reached from another one.
  static Result<Graph> of(const Topology& topology, const Assumed& assumed = {});
  /// Returns the graph of a part of a job (job.h), whose ranks keep the rails that they have in it.
  static Result<Graph> of(const Topology& topology, const Assumed& assumed, const RailShares& shares);

  const Topology& topology() const { return topology_; }
  const Assumed& assumed() const { return assumed_; }
  const std::vector<Vertex>& vertices() const { return parts_.vertices; }
  const std::vector<Edge>& edges() const { return parts_.edges; }
  int ranks() const { return static_cast<int>(topology_.ranks.size()); }
  int host_of(int rank) const { return topology_.ranks[static_cast<std::size_t>(rank)].host; }

  /// Returns the route between two different ranks. `lane`: across hosts by the NICs of the two in that lane (rails.h),
  /// if one leads to the other; kAnyLane: by the best ones. The reference is valid as long as the graph.
  const Route& route(int from, int to, int lane = kAnyLane) const;
  /// Returns the rails of each rank.
  const RailShares& shares() const { return shares_; }
  /// Returns the route of a rank's work on its own memory: its edge and the capacities of its place.
  const Route& at_home(int rank) const;
  /// Returns the route between a rank and the n-th NIC of its host.
  const Route& route_to_nic(int rank, int nic) const;

  /// Returns the largest number of NICs of a host with a link to beyond it; 1 if there are none.
  int rails() const { return rails_; }
  /// Returns the vertices of these NICs of a host, in the order of their first links: its rails.
  const std::vector<int>& nics_of(int host) const { return parts_.nics[static_cast<std::size_t>(host)]; }

  /// Returns the number of resources: edges first, then vertices.
  int resources() const { return static_cast<int>(parts_.edges.size() + parts_.vertices.size()); }
  double gb_per_s_of(int resource) const;  // 0: no limit
  /// Returns true for the resources of cores and their caches: a rank's edge, edges to a cache or a NUMA node, and the
  /// memory of the latter.
  bool is_of_cores(int resource) const;
  /// Returns "host 0 gpu 3 (H100) -> host 0 pci_switch 1", "memory of host 0 NUMA node 1".
  std::string name_of_resource(int resource) const;
  std::string name_of_vertex(int vertex) const;

 private:
  Graph(const Topology& topology, const Assumed& assumed, const RailShares& shares);
  Status check_reach() const;
  Status check_ways() const;
  std::set<int> networks_from(int start, const std::vector<int>& network_of) const;
  /// The NICs of a way: their vertices on the first and the last host; -1: any.
  struct Nics {
    int out = -1;
    int in = -1;
    auto operator<=>(const Nics&) const = default;
  };
  Nics nics_between(int from, int to, int lane) const;
  bool may_enter(int vertex, int from, int to, const Nics& by) const;
  /// Returns a way between vertices that are not ranks; its `vertices` are empty if there is none.
  const Route& way(int from, int to, const Nics& by) const;
  Route search(int from, int to, const Nics& by) const;
  void finish(Route& route) const;

  Topology topology_;
  Assumed assumed_;
  GraphParts parts_;
  int rails_ = 1;
  RailShares shares_;
  mutable std::map<std::tuple<int, int, Nics>, Route> ways_;
  mutable std::map<std::tuple<int, int, Nics>, Route> routes_;
};

}  // namespace tutti::topology
