#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "base/index.h"
#include "topology/graph_parts.h"

namespace tutti::topology {

namespace {

double or_else(double known, double assumed) { return known > 0 ? known : assumed; }

VertexKind kind_of(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::pci_switch: return VertexKind::pci_switch;
    case DeviceKind::nic: return VertexKind::nic;
    case DeviceKind::gpu: return VertexKind::gpu;
    case DeviceKind::nvswitch: return VertexKind::nvswitch;
  }
  return VertexKind::network;
}

// Distances of NUMA nodes are relative latencies: 10 to a node itself. The other two are typical of servers, within a
// package and between packages; they serve if the firmware gives none.
constexpr int kOwnDistance = 10;
constexpr int kNearDistance = 12;
constexpr int kFarDistance = 32;

/// Returns the package of each NUMA node's cores; -1: it has none.
std::vector<int> packages_of_nodes(const Host& host) {
  std::vector<int> packages(host.numa_nodes.size(), -1);
  for (const Core& core : host.cores) packages[at(core.numa_node)] = core.package;
  return packages;
}

/// Returns the distances between NUMA nodes: the firmware's, unless they are all the same; else by their packages.
std::vector<std::vector<int>> distances_between(const Host& host, const std::vector<int>& packages) {
  const std::size_t nodes = packages.size();
  std::set<int> known_distances;
  std::vector<std::vector<int>> distances(nodes, std::vector<int>(nodes, kOwnDistance));
  for (std::size_t a = 0; a < nodes; ++a) {
    const std::vector<int>& known = host.numa_nodes[a].distances;
    for (std::size_t b = 0; b < nodes; ++b) {
      if (b == a) continue;
      distances[a][b] = known.empty() ? 0 : known[b];
      known_distances.insert(distances[a][b]);
    }
  }
  if (known_distances.size() > 1 && *known_distances.begin() > kOwnDistance) return distances;
  for (std::size_t a = 0; a < nodes; ++a) {
    for (std::size_t b = 0; b < nodes; ++b) {
      if (b != a) distances[a][b] = packages[a] >= 0 && packages[a] == packages[b] ? kNearDistance : kFarDistance;
    }
  }
  return distances;
}

class GraphBuilder {
 public:
  GraphBuilder(const Topology& topology, const Assumed& assumed) : topology_(topology), assumed_(assumed) {}

  GraphParts build();

 private:
  int add_vertex(VertexKind kind, int host, int index, double gb_per_s = 0);
  void add_link(int a, int b, double gb_per_s, double latency_us);
  void add_host(int host);
  void join_nodes(int host);
  void add_rank(int rank);
  int numa_vertex(int host, int node) const;
  int cache_vertex(int host, int core);
  int vertex_of(const Place& place);

  const Topology& topology_;
  const Assumed& assumed_;
  GraphParts parts_;
  std::vector<std::vector<int>> devices_;                 // vertices by host and index
  std::map<std::tuple<VertexKind, int, int>, int> made_;  // cores and caches: (kind, host, index) -> vertex
};

GraphParts GraphBuilder::build() {
  const int hosts = static_cast<int>(topology_.hosts.size());
  parts_.numa.resize(at(hosts));
  devices_.resize(at(hosts));
  parts_.nics.resize(at(hosts));
  for (int host = 0; host < hosts; ++host) add_host(host);
  for (int i = 0; i < static_cast<int>(topology_.switches.size()); ++i) {
    parts_.switches.push_back(add_vertex(VertexKind::network, -1, i));
  }
  for (const Link& link : topology_.links) {
    const int a = vertex_of(link.a);
    const int b = vertex_of(link.b);
    if (a != b) add_link(a, b, link.gb_per_s, link.latency_us);
    for (const auto& [end, other] : {std::pair{a, b}, std::pair{b, a}}) {
      const Vertex& nic = parts_.vertices[at(end)];
      if (nic.kind != VertexKind::nic || parts_.vertices[at(other)].host == nic.host) continue;
      std::vector<int>& known = parts_.nics[at(nic.host)];
      if (std::find(known.begin(), known.end(), end) == known.end()) known.push_back(end);
    }
  }
  for (int rank = 0; rank < static_cast<int>(topology_.ranks.size()); ++rank) add_rank(rank);
  return std::move(parts_);
}

int GraphBuilder::add_vertex(VertexKind kind, int host, int index, double gb_per_s) {
  parts_.vertices.push_back({kind, host, index, gb_per_s});
  parts_.edges_from.emplace_back();
  return static_cast<int>(parts_.vertices.size()) - 1;
}

void GraphBuilder::add_link(int a, int b, double gb_per_s, double latency_us) {
  for (const auto& [from, to] : {std::pair{a, b}, std::pair{b, a}}) {
    parts_.edges_from[at(from)].push_back(static_cast<int>(parts_.edges.size()));
    parts_.edges.push_back({from, to, gb_per_s, latency_us});
  }
}

void GraphBuilder::add_host(int index) {
  const Host& host = topology_.hosts[at(index)];
  const int nodes = static_cast<int>(host.numa_nodes.size());
  for (int n = 0; n < nodes; ++n) {
    const double gb_per_s = or_else(host.numa_nodes[at(n)].gb_per_s, assumed_.memory_gb_per_s);
    parts_.numa[at(index)].push_back(add_vertex(VertexKind::numa_node, index, n, gb_per_s));
  }
  // Without links between NUMA nodes all are joined.
  const auto node_of = [&](const Place& place) {
    if (place.host != index || place.kind == PlaceKind::device || place.kind == PlaceKind::core) return -1;
    return place.kind == PlaceKind::network ? -1 : parts_.vertices[at(vertex_of(place))].index;
  };
  std::set<std::pair<int, int>> linked;
  for (const Link& link : topology_.links) {
    const int a = node_of(link.a);
    const int b = node_of(link.b);
    if (a >= 0 && b >= 0) linked.insert(std::minmax(a, b));
  }
  if (linked.empty()) join_nodes(index);
  for (int d = 0; d < static_cast<int>(host.devices.size()); ++d) {
    const Device& device = host.devices[at(d)];
    const bool is_gpu = device.kind == DeviceKind::gpu;
    const int vertex =
        add_vertex(kind_of(device.kind), index, d, is_gpu ? or_else(device.gb_per_s, assumed_.gpu_gb_per_s) : 0);
    devices_[at(index)].push_back(vertex);
    if (device.kind == DeviceKind::nvswitch) continue;  // no part of the PCI tree that data goes through
    const int parent =
        device.parent >= 0 ? devices_[at(index)][at(device.parent)] : numa_vertex(index, device.numa_node);
    add_link(vertex, parent, or_else(device.up_gb_per_s, assumed_.pci_gb_per_s),
             or_else(device.up_latency_us, assumed_.pci_latency_us));
  }
}

/// Links each pair. The nodes with cores that are furthest apart count as two sockets; the others by their share of
/// that distance.
void GraphBuilder::join_nodes(int index) {
  const std::vector<int>& nodes = parts_.numa[at(index)];
  const std::vector<int> packages = packages_of_nodes(topology_.hosts[at(index)]);
  const std::vector<std::vector<int>> distances = distances_between(topology_.hosts[at(index)], packages);
  int furthest = 0;
  for (std::size_t a = 0; a < nodes.size(); ++a) {
    for (std::size_t b = 0; b < nodes.size(); ++b) {
      if (a != b && packages[a] >= 0 && packages[b] >= 0) furthest = std::max(furthest, distances[a][b]);
    }
  }
  for (std::size_t a = 0; a < nodes.size(); ++a) {
    for (std::size_t b = a + 1; b < nodes.size(); ++b) {
      const int distance = std::max(distances[a][b], distances[b][a]);
      const bool is_far = distance >= furthest;
      const double nearness = is_far ? 1 : static_cast<double>(furthest) / distance;
      const double way = is_far ? 1 : static_cast<double>(distance - kOwnDistance) / (furthest - kOwnDistance);
      add_link(nodes[a], nodes[b], assumed_.socket_gb_per_s * nearness, assumed_.socket_latency_us * way);
    }
  }
}

int GraphBuilder::numa_vertex(int host, int node) const { return parts_.numa[at(host)][at(node)]; }

/// Returns the last-level cache of a core if several cores share it, else its NUMA node.
int GraphBuilder::cache_vertex(int host_index, int core) {
  const Host& host = topology_.hosts[at(host_index)];
  const int cpu = host.cores[at(core)].cpus.front();
  int last = -1;
  for (int c = 0; c < static_cast<int>(host.caches.size()); ++c) {
    const Cache& cache = host.caches[at(c)];
    const bool shared = cache.cpus.size() > host.cores[at(core)].cpus.size();
    const bool holds = std::binary_search(cache.cpus.begin(), cache.cpus.end(), cpu);
    if (shared && holds && (last < 0 || cache.level > host.caches[at(last)].level)) last = c;
  }
  const int node = numa_vertex(host_index, host.cores[at(core)].numa_node);
  if (last < 0) return node;
  const auto [found, is_new] = made_.try_emplace({VertexKind::cache, host_index, last}, 0);
  if (is_new) {
    found->second = add_vertex(VertexKind::cache, host_index, last);
    add_link(found->second, node, assumed_.cache_gb_per_s, assumed_.cache_latency_us);
  }
  return found->second;
}

int GraphBuilder::vertex_of(const Place& place) {
  switch (place.kind) {
    case PlaceKind::host: return numa_vertex(place.host, 0);
    case PlaceKind::numa_node: return numa_vertex(place.host, place.index);
    case PlaceKind::device: return devices_[at(place.host)][at(place.index)];
    case PlaceKind::network: return parts_.switches[at(place.index)];
    case PlaceKind::package: {
      for (const Core& core : topology_.hosts[at(place.host)].cores) {
        if (core.package == place.index) return numa_vertex(place.host, core.numa_node);
      }
      return numa_vertex(place.host, 0);
    }
    case PlaceKind::core: break;
  }
  const auto [found, is_new] = made_.try_emplace({VertexKind::core, place.host, place.index}, 0);
  if (is_new) {
    const int above = cache_vertex(place.host, place.index);
    const int vertex = add_vertex(VertexKind::core, place.host, place.index);
    made_[{VertexKind::core, place.host, place.index}] = vertex;
    add_link(vertex, above, assumed_.cache_gb_per_s, assumed_.cache_latency_us);
    return vertex;
  }
  return found->second;
}

void GraphBuilder::add_rank(int rank) {
  const Place& place = topology_.ranks[at(rank)];
  const int home = vertex_of(place);
  const int vertex = add_vertex(VertexKind::rank, place.host, rank);
  parts_.ranks.push_back(vertex);
  if (parts_.vertices[at(home)].kind == VertexKind::gpu) {
    add_link(vertex, home, parts_.vertices[at(home)].gb_per_s, assumed_.gpu_latency_us);
  } else {
    const double gb_per_s = or_else(topology_.hosts[at(place.host)].core_gb_per_s, assumed_.core_gb_per_s);
    add_link(vertex, home, gb_per_s, assumed_.core_latency_us);
  }
}

}  // namespace

GraphParts build_graph(const Topology& topology, const Assumed& assumed) {
  return GraphBuilder(topology, assumed).build();
}

}  // namespace tutti::topology
