#include "topology/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <limits>
#include <queue>
#include <set>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/index.h"

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

// Distances of NUMA nodes are latencies, with that of local memory as 10. The others: of two nodes of a package, and of
// two packages, as the firmware of servers tells them; for where it does not.
constexpr int kOwnDistance = 10;
constexpr int kNearDistance = 12;
constexpr int kFarDistance = 32;

/// The package that each NUMA node's cores are in; -1: it has none.
std::vector<int> packages_of_nodes(const Host& host) {
  std::vector<int> packages(host.numa_nodes.size(), -1);
  for (const Core& core : host.cores) packages[at(core.numa_node)] = core.package;
  return packages;
}

/// From each NUMA node to each: as told, unless that is the same for all; else by their packages.
std::vector<std::vector<int>> distances_between(const Host& host, const std::vector<int>& packages) {
  const std::size_t nodes = packages.size();
  std::set<int> told;
  std::vector<std::vector<int>> distances(nodes, std::vector<int>(nodes, kOwnDistance));
  for (std::size_t a = 0; a < nodes; ++a) {
    const std::vector<int>& known = host.numa_nodes[a].distances;
    for (std::size_t b = 0; b < nodes; ++b) {
      if (b == a) continue;
      distances[a][b] = known.empty() ? 0 : known[b];
      told.insert(distances[a][b]);
    }
  }
  if (told.size() > 1 && *told.begin() > kOwnDistance) return distances;
  for (std::size_t a = 0; a < nodes; ++a) {
    for (std::size_t b = 0; b < nodes; ++b) {
      if (b != a) distances[a][b] = packages[a] >= 0 && packages[a] == packages[b] ? kNearDistance : kFarDistance;
    }
  }
  return distances;
}

}  // namespace

Graph::Graph(const Topology& topology, const Assumed& assumed, const RailShares& shares)
    : topology_(topology), assumed_(assumed), shares_(shares) {
  const int hosts = static_cast<int>(topology_.hosts.size());
  numa_.resize(at(hosts));
  devices_.resize(at(hosts));
  nics_.resize(at(hosts));
  for (int host = 0; host < hosts; ++host) add_host(host);
  for (int i = 0; i < static_cast<int>(topology_.switches.size()); ++i) {
    switches_.push_back(add_vertex(VertexKind::network, -1, i));
  }
  for (const Link& link : topology_.links) {
    const int a = vertex_of(link.a);
    const int b = vertex_of(link.b);
    if (a != b) add_link(a, b, link.gb_per_s, link.latency_us);
    for (const auto& [end, other] : {std::pair{a, b}, std::pair{b, a}}) {
      const Vertex& nic = vertices_[at(end)];
      if (nic.kind != VertexKind::nic || vertices_[at(other)].host == nic.host) continue;
      std::vector<int>& known = nics_[at(nic.host)];
      if (std::find(known.begin(), known.end(), end) == known.end()) known.push_back(end);
    }
  }
  for (const std::vector<int>& nics : nics_) rails_ = std::max(rails_, static_cast<int>(nics.size()));
  for (int rank = 0; rank < ranks(); ++rank) add_rank(rank);
}

int Graph::add_vertex(VertexKind kind, int host, int index, double gb_per_s) {
  vertices_.push_back({kind, host, index, gb_per_s});
  edges_from_.emplace_back();
  return static_cast<int>(vertices_.size()) - 1;
}

void Graph::add_link(int a, int b, double gb_per_s, double latency_us) {
  for (const auto& [from, to] : {std::pair{a, b}, std::pair{b, a}}) {
    edges_from_[at(from)].push_back(static_cast<int>(edges_.size()));
    edges_.push_back({from, to, gb_per_s, latency_us});
  }
}

void Graph::add_host(int index) {
  const Host& host = topology_.hosts[at(index)];
  const int nodes = static_cast<int>(host.numa_nodes.size());
  for (int n = 0; n < nodes; ++n) {
    const double gb_per_s = or_else(host.numa_nodes[at(n)].gb_per_s, assumed_.memory_gb_per_s);
    numa_[at(index)].push_back(add_vertex(VertexKind::numa_node, index, n, gb_per_s));
  }
  // NUMA nodes that no link joins are joined all the same.
  const auto node_of = [&](const Place& place) {
    if (place.host != index || place.kind == PlaceKind::device || place.kind == PlaceKind::core) return -1;
    return place.kind == PlaceKind::network ? -1 : vertices_[at(vertex_of(place))].index;
  };
  std::set<std::pair<int, int>> told;
  for (const Link& link : topology_.links) {
    const int a = node_of(link.a);
    const int b = node_of(link.b);
    if (a >= 0 && b >= 0) told.insert(std::minmax(a, b));
  }
  if (told.empty()) join_nodes(index);
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

/// Each with each: those with cores that are furthest from each other as two sockets are, and others by their share of
/// that way.
void Graph::join_nodes(int index) {
  const std::vector<int>& nodes = numa_[at(index)];
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

int Graph::numa_vertex(int host, int node) const { return numa_[at(host)][at(node)]; }

/// The last-level cache of a core where several cores share one, else its NUMA node.
int Graph::cache_vertex(int host_index, int core) {
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

int Graph::vertex_of(const Place& place) {
  switch (place.kind) {
    case PlaceKind::host: return numa_vertex(place.host, 0);
    case PlaceKind::numa_node: return numa_vertex(place.host, place.index);
    case PlaceKind::device: return devices_[at(place.host)][at(place.index)];
    case PlaceKind::network: return switches_[at(place.index)];
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

void Graph::add_rank(int rank) {
  const Place& place = topology_.ranks[at(rank)];
  const int home = vertex_of(place);
  const int vertex = add_vertex(VertexKind::rank, place.host, rank);
  ranks_.push_back(vertex);
  if (vertices_[at(home)].kind == VertexKind::gpu) {
    add_link(vertex, home, vertices_[at(home)].gb_per_s, assumed_.gpu_latency_us);
  } else {
    const double gb_per_s = or_else(topology_.hosts[at(place.host)].core_gb_per_s, assumed_.core_gb_per_s);
    add_link(vertex, home, gb_per_s, assumed_.core_latency_us);
  }
}

Result<Graph> Graph::of(const Topology& topology, const Assumed& assumed) {
  return of(topology, assumed, RailShares(host_of_rank(topology)));
}

Result<Graph> Graph::of(const Topology& topology, const Assumed& assumed, const RailShares& shares) {
  TUTTI_TRY(check(topology));
  Graph graph(topology, assumed, shares);
  TUTTI_TRY(graph.check_reach());
  return graph;
}

/// From host 0 (where there are ranks: from that of rank 0) to all hosts, as far as links lead.
Status Graph::check_reach() const {
  std::vector<bool> seen(vertices_.size());
  std::vector<int> next{numa_vertex(0, 0)};
  seen[at(next.front())] = true;
  while (!next.empty()) {
    const int vertex = next.back();
    next.pop_back();
    for (const int edge : edges_from_[at(vertex)]) {
      const int to = edges_[at(edge)].to;
      if (!seen[at(to)]) next.push_back(to);
      seen[at(to)] = true;
    }
  }
  for (std::size_t host = 1; host < numa_.size(); ++host) {
    for (const int node : numa_[host]) {
      if (seen[at(node)]) continue;
      return invalid_argument(
          fmt::format("hosts[{}]: no link leads from hosts[0] to its NUMA node {}", host, vertices_[at(node)].index));
    }
  }
  return check_ways();
}

/// The networks that links lead to from a vertex without passing through another host; each by its first switch.
std::set<int> Graph::networks_from(int start, const std::vector<int>& network_of) const {
  std::set<int> networks;
  std::set<int> seen{start};
  std::vector<int> next{start};
  while (!next.empty()) {
    const int vertex = next.back();
    next.pop_back();
    for (const int edge : edges_from_[at(vertex)]) {
      const int to = edges_[at(edge)].to;
      if (network_of[at(to)] >= 0) networks.insert(network_of[at(to)]);
      if (may_enter(to, start, start, {}) && seen.insert(to).second) next.push_back(to);
    }
  }
  return networks;
}

/// Between any two hosts, for which their first ranks stand, and between these and the others of their host. Hosts on
/// one network find each other there: no way has to be sought for each pair, of which there may be half a million.
Status Graph::check_ways() const {
  std::vector<int> network_of(vertices_.size(), -1);  // of a switch; -1: it is none
  for (const int first : switches_) {
    if (network_of[at(first)] >= 0) continue;
    std::vector<int> next{first};
    network_of[at(first)] = first;
    while (!next.empty()) {
      const int vertex = next.back();
      next.pop_back();
      for (const int edge : edges_from_[at(vertex)]) {
        const int to = edges_[at(edge)].to;
        if (vertices_[at(to)].host >= 0 || network_of[at(to)] >= 0) continue;
        network_of[at(to)] = first;
        next.push_back(to);
      }
    }
  }
  struct First {
    int rank;
    int home;
    std::set<int> networks;
  };
  std::map<int, First> firsts;  // by host
  const auto no_way = [&](int from, int to) {
    return invalid_argument(fmt::format(
        "no way leads from ranks[{}] on hosts[{}] to ranks[{}] on hosts[{}] without passing through a third "
        "host",
        from, host_of(from), to, host_of(to)));
  };
  for (int rank = 0; rank < ranks(); ++rank) {
    const int home = edges_[at(edges_from_[at(ranks_[at(rank)])].front())].to;
    const auto known = firsts.find(host_of(rank));
    if (known == firsts.end()) {
      firsts.emplace(host_of(rank), First{rank, home, networks_from(home, network_of)});
    } else if (way(known->second.home, home, {}).vertices.empty()) {
      return no_way(known->second.rank, rank);
    }
  }
  for (auto one = firsts.begin(); one != firsts.end(); ++one) {
    for (auto other = std::next(one); other != firsts.end(); ++other) {
      const First& a = one->second;
      const First& b = other->second;
      const bool meet =
          std::any_of(a.networks.begin(), a.networks.end(), [&](int n) { return b.networks.contains(n); });
      if (!meet && way(a.home, b.home, {}).vertices.empty()) return no_way(a.rank, b.rank);
    }
  }
  return {};
}

Graph::Nics Graph::nics_between(int from, int to, int lane) const {
  const auto rails = [&](int rank) { return static_cast<int>(nics_of(host_of(rank)).size()); };
  if (lane == kAnyLane || host_of(from) == host_of(to)) return {};
  const auto nic = [&](int rank, int other) {
    if (rails(rank) == 0) return -1;
    const RailShare share = shares_.between(rank, rails(rank), other, std::max(rails(other), 1));
    return nics_of(host_of(rank))[at(share.of_lane(lane))];
  };
  return {nic(from, to), nic(to, from)};
}

bool Graph::may_enter(int vertex, int from, int to, const Nics& by) const {
  if (vertex == to) return true;
  const Vertex& v = vertices_[at(vertex)];
  const int here = vertices_[at(from)].host;
  const int there = vertices_[at(to)].host;
  if (v.host < 0) return here != there;
  if (v.host != here && v.host != there) return false;
  switch (v.kind) {
    case VertexKind::rank:
    case VertexKind::core:
    case VertexKind::gpu: return false;
    case VertexKind::nic: {
      const int only = v.host == here ? by.out : by.in;
      return only < 0 || only == vertex;
    }
    default: return true;
  }
}

Route Graph::search(int from, int to, const Nics& by) const {
  constexpr double kFar = std::numeric_limits<double>::infinity();
  // How wide the widest way is; then the quickest of those that are as wide.
  std::vector<double> width(vertices_.size(), 0);
  std::priority_queue<std::pair<double, int>> widest;
  width[at(from)] = kFar;
  widest.emplace(kFar, from);
  while (!widest.empty()) {
    const auto [w, vertex] = widest.top();
    widest.pop();
    if (w < width[at(vertex)]) continue;
    for (const int edge : edges_from_[at(vertex)]) {
      const Edge& e = edges_[at(edge)];
      const double through = std::min(w, e.gb_per_s);
      if (through <= width[at(e.to)] || !may_enter(e.to, from, to, by)) continue;
      width[at(e.to)] = through;
      widest.emplace(through, e.to);
    }
  }
  Route route;
  if (width[at(to)] == 0) return route;
  using Cost = std::tuple<double, int, int>;  // latency, hops, vertex
  std::vector<std::pair<double, int>> best(vertices_.size(), {kFar, 0});
  std::vector<int> came_by(vertices_.size(), -1);
  std::priority_queue<Cost, std::vector<Cost>, std::greater<>> quickest;
  best[at(from)] = {0, 0};
  quickest.emplace(0, 0, from);
  while (!quickest.empty()) {
    const auto [latency, hops, vertex] = quickest.top();
    quickest.pop();
    if (std::pair(latency, hops) > best[at(vertex)]) continue;
    for (const int edge : edges_from_[at(vertex)]) {
      const Edge& e = edges_[at(edge)];
      const std::pair then{latency + e.latency_us, hops + 1};
      if (e.gb_per_s < width[at(to)] || then >= best[at(e.to)] || !may_enter(e.to, from, to, by)) continue;
      best[at(e.to)] = then;
      came_by[at(e.to)] = edge;
      quickest.emplace(then.first, then.second, e.to);
    }
  }
  for (int vertex = to; vertex != from; vertex = edges_[at(route.edges.back())].from) {
    route.edges.push_back(came_by[at(vertex)]);
  }
  std::reverse(route.edges.begin(), route.edges.end());
  route.vertices.push_back(from);
  for (const int edge : route.edges) route.vertices.push_back(edges_[at(edge)].to);
  return route;
}

void Graph::finish(Route& route) const {
  route.resources = route.edges;
  for (const int edge : route.edges) route.latency_us += edges_[at(edge)].latency_us;
  for (const int vertex : route.vertices) {
    const Vertex& v = vertices_[at(vertex)];
    // What a GPU sends goes by NUMA nodes, but not through their memory.
    const bool only_passes =
        v.kind == VertexKind::numa_node && std::any_of(route.vertices.begin(), route.vertices.end(), [&](int other) {
          return vertices_[at(other)].host == v.host && vertices_[at(other)].kind == VertexKind::gpu;
        });
    if (v.gb_per_s > 0 && !only_passes) route.resources.push_back(static_cast<int>(edges_.size()) + vertex);
  }
  std::sort(route.resources.begin(), route.resources.end());
  route.resources.erase(std::unique(route.resources.begin(), route.resources.end()), route.resources.end());
  route.gb_per_s = route.resources.empty() ? 0 : std::numeric_limits<double>::infinity();
  for (const int resource : route.resources) route.gb_per_s = std::min(route.gb_per_s, gb_per_s_of(resource));
}

const Route& Graph::way(int from, int to, const Nics& by) const {
  const auto [found, is_new] = ways_.try_emplace({from, to, by});
  Route& route = found->second;
  if (!is_new) return route;
  if (from == to) {
    route.vertices.push_back(from);
    return route;
  }
  route = search(from, to, by);
  if (route.vertices.empty() && by != Nics()) route = way(from, to, {});
  return route;
}

const Route& Graph::route(int from, int to, int lane) const {
  const Nics by = nics_between(from, to, lane);
  const auto [found, is_new] = routes_.try_emplace({from, to, by});
  Route& route = found->second;
  if (!is_new) return route;
  const int out = edges_from_[at(ranks_[at(from)])].front();
  const int in = edges_from_[at(ranks_[at(to)])].front() ^ 1;  // a link's edges are neighbours
  const Route& between = way(edges_[at(out)].to, edges_[at(in)].from, by);
  if (between.vertices.empty()) return route;
  route.vertices.push_back(ranks_[at(from)]);
  route.vertices.insert(route.vertices.end(), between.vertices.begin(), between.vertices.end());
  route.vertices.push_back(ranks_[at(to)]);
  route.edges.push_back(out);
  route.edges.insert(route.edges.end(), between.edges.begin(), between.edges.end());
  route.edges.push_back(in);
  finish(route);
  return route;
}

const Route& Graph::at_home(int rank) const {
  const auto [found, is_new] = routes_.try_emplace({rank, rank, Nics()});
  Route& route = found->second;
  if (!is_new) return route;
  const int out = edges_from_[at(ranks_[at(rank)])].front();
  route.edges.push_back(out);
  route.vertices = {edges_[at(out)].from, edges_[at(out)].to};
  if (vertices_[at(route.vertices.back())].kind == VertexKind::core) {  // its memory is its NUMA node's
    const int core = vertices_[at(route.vertices.back())].index;
    const int node = topology_.hosts[at(host_of(rank))].cores[at(core)].numa_node;
    const Route& down = way(route.vertices.back(), numa_vertex(host_of(rank), node), {});
    route.edges.insert(route.edges.end(), down.edges.begin(), down.edges.end());
    route.vertices.insert(route.vertices.end(), down.vertices.begin() + 1, down.vertices.end());
  }
  finish(route);
  return route;
}

const Route& Graph::route_to_nic(int rank, int nic) const {
  const std::vector<int>& nics = nics_of(host_of(rank));
  TUTTI_CHECK(nic >= 0 && nic < static_cast<int>(nics.size()));
  const int vertex = nics[at(nic)];
  const auto [found, is_new] = routes_.try_emplace({rank, -1 - vertex, Nics()});
  Route& route = found->second;
  if (!is_new) return route;
  const int out = edges_from_[at(ranks_[at(rank)])].front();
  route = way(edges_[at(out)].to, vertex, {});
  finish(route);
  return route;
}

double Graph::gb_per_s_of(int resource) const {
  const int edges = static_cast<int>(edges_.size());
  return resource < edges ? edges_[at(resource)].gb_per_s : vertices_[at(resource - edges)].gb_per_s;
}

bool Graph::is_of_cores(int resource) const {
  const auto of_cores = [&](int vertex) {
    const VertexKind kind = vertices_[at(vertex)].kind;
    return kind == VertexKind::rank || kind == VertexKind::core || kind == VertexKind::cache ||
           kind == VertexKind::numa_node;
  };
  const int edges = static_cast<int>(edges_.size());
  if (resource >= edges) return of_cores(resource - edges);
  return of_cores(edges_[at(resource)].from) && of_cores(edges_[at(resource)].to);
}

std::string Graph::name_of_vertex(int vertex) const {
  const Vertex& v = vertices_[at(vertex)];
  switch (v.kind) {
    case VertexKind::rank: return fmt::format("rank {}", v.index);
    case VertexKind::core: return name_of(topology_, {v.host, PlaceKind::core, v.index});
    case VertexKind::cache: return fmt::format("host {} cache {}", v.host, v.index);
    case VertexKind::numa_node: return name_of(topology_, {v.host, PlaceKind::numa_node, v.index});
    case VertexKind::network: return name_of(topology_, {0, PlaceKind::network, v.index});
    default: return name_of(topology_, {v.host, PlaceKind::device, v.index});
  }
}

std::string Graph::name_of_resource(int resource) const {
  const int edges = static_cast<int>(edges_.size());
  if (resource >= edges) return "memory of " + name_of_vertex(resource - edges);
  const Edge& edge = edges_[at(resource)];
  return fmt::format("{} -> {}", name_of_vertex(edge.from), name_of_vertex(edge.to));
}

}  // namespace tutti::topology
