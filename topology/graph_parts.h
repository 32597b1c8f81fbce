// The vertices and edges of a topology (graph.h says what they stand for), without the ways between them.
#pragma once

#include <cstdint>
#include <vector>

#include "topology/topology.h"

namespace tutti::topology {

/// Replaces unknown figures. GB/s each way, us.
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

struct GraphParts {
  std::vector<Vertex> vertices;
  std::vector<Edge> edges;
  std::vector<std::vector<int>> edges_from;  // by vertex
  std::vector<std::vector<int>> numa;        // vertices by host and index
  std::vector<int> switches, ranks;          // vertices by index
  std::vector<std::vector<int>> nics;        // of each host with a link to beyond it, in the order of links
};

/// REQUIRES: check(topology) is ok.
GraphParts build_graph(const Topology& topology, const Assumed& assumed);

}  // namespace tutti::topology
